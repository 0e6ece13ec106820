"""check: everything that can be said of a policy in about a minute, as a verdict a line."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from attrs import evolve, frozen

from nanofn.lab.contract import Counterexample, digest, digest_elsewhere, random_run
from nanofn.lab.explore import explore
from nanofn.lab.graph import Arrivals
from nanofn.lab.guarded import Guarded, PolicyFault
from nanofn.lab.lint import impurities
from nanofn.lab.liveness import MAX_CAP, Run, Verdict, study
from nanofn.lab.policy_facts import Caps
from nanofn.lab.scope import Scope
from nanofn.lab.scopes import LIVENESS, safety_of
from nanofn.state.decision import Policy

NUM_RUNS = 200
_NUM_DIGESTED = 25
_MAX_STATES = 20_000
"""Of a policy's graph at one scope. One whose state is not normal, or that is very patient, has more: then nothing is proven."""

Watch = Callable[[int], None]


@frozen
class Finding:
    """One line of the verdict.

    Attributes:
        name: What was looked at.
        verdict: Whether it holds: "holds", "fails", or "unknown" where the search was cut off.
        detail: The figures, or what is wrong.
        counterexample: A run that shows it.
    """

    name: str
    verdict: Literal["holds", "fails", "unknown"]
    detail: str
    counterexample: Counterexample | None = None


def check(policy: Policy[Any], name: str, source: Path | None, watch: Watch | None = None) -> Iterator[Finding]:
    """Judge a policy; findings come as they are made, the cheap ones first.

    Once it fails to decide lawfully nothing more is asked of it.

    Args:
        policy: The policy.
        name: As `load_policy` takes it.
        source: The file it was written in; None for a built-in one.
        watch: Called now and then with the number of states searched so far.
    """
    if source is not None:
        found = impurities(source.read_text(encoding="utf-8"))
        yield Finding("purity", "fails" if found else "holds", "; ".join(found) or "no I/O, clock, randomness, globals")
    guarded = Guarded(policy)
    contract = _contract(guarded)
    yield contract
    if contract.verdict == "fails":
        return
    yield _hash_seeds(policy, name)
    for scope_name, scope in safety_of(guarded).items():
        yield _safety(scope_name, scope, watch)
    counted = Caps(4 if "steps_since_output" in guarded.names else 0, 2 if "num_preemptions" in guarded.names else 0)
    for scope_name, arrivals in LIVENESS.items():
        yield _liveness(guarded, scope_name, arrivals, counted, watch)


def num_findings(source: Path | None) -> int:
    """Count the findings of a policy that gets through all of it: for a progress bar."""
    return 2 + (source is not None) + 4 + len(LIVENESS)


def _contract(guarded: Guarded) -> Finding:
    for seed in range(NUM_RUNS):
        broken = random_run(guarded, seed).counterexample
        if broken is not None:
            return Finding("contract", "fails", f"{broken.problem} (random run {seed})", broken)
    return Finding("contract", "holds", f"lawful, repeatable, immutable, every rule kept in {NUM_RUNS} random runs")


def _hash_seeds(policy: Policy[Any], name: str) -> Finding:
    here, there = digest(policy, range(_NUM_DIGESTED)), digest_elsewhere(name, _NUM_DIGESTED)
    if here != there:
        return Finding("another process", "fails", "with another hash seed it decides differently: it iterates a set?")
    return Finding("another process", "holds", f"the same decisions with another hash seed in {_NUM_DIGESTED} runs")


def _safety(name: str, scope: Scope, watch: Watch | None) -> Finding:
    found = explore(scope, watch)
    figures = f"{found.num_states:,} states, {found.num_transitions:,} transitions"
    if found.broken is not None:
        broken = Counterexample(scope.limits, found.broken.events, found.broken.problem)
        return Finding(f"safety, {name}", "fails", found.broken.problem, broken)
    return Finding(f"safety, {name}", "holds" if found.is_complete else "unknown", figures + _cut(found.is_complete))


def _liveness(policy: Policy[Any], name: str, arrivals: Arrivals, caps: Caps, watch: Watch | None) -> Finding:
    title, bounded = f"liveness, {name}", evolve(arrivals, max_states=_MAX_STATES)
    try:
        verdict = study(policy, bounded, caps, grows=caps.num_steps > 0, watch=watch)
    except PolicyFault as fault:
        return Finding(title, "fails", str(fault))
    return _judged(title, arrivals, verdict)


def _judged(title: str, arrivals: Arrivals, verdict: Verdict) -> Finding:
    for what, run in (("livelock", verdict.livelock), ("starvation", verdict.starvation)):
        if run is not None:
            problem = _told(what, run)
            return Finding(
                title, "fails", problem, Counterexample(arrivals.limits, run.events, problem, run.cycle_start)
            )
    figures = f"{verdict.num_states:,} states"
    if verdict.is_complete:
        return Finding(title, "holds", f"{figures}, a token at least every {verdict.longest_wait} steps")
    return Finding(title, "unknown", f"{figures}{_cut(is_complete=False)} or more patient than {MAX_CAP} steps")


def _told(what: str, run: Run) -> str:
    if what == "livelock":
        return f"livelock: the steps repeat for ever and nobody gets a token, s{run.unserved} for one"
    return f"starvation: while others come and go, s{run.unserved} never gets its next token"


def _cut(is_complete: bool) -> str:
    return "" if is_complete else "; cut off there: its state holds ids or totals (see `normal`)?"
