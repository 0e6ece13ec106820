"""contract: random runs under a policy, in which every decision is lawful and every rule of the core holds."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable
from random import Random
from typing import Any

from attrs import frozen

from nanofn.config import Limits
from nanofn.lab.guarded import PolicyFault
from nanofn.lab.random_work import random_limits, random_request
from nanofn.lab.work import Work
from nanofn.request import RequestId
from nanofn.schedule.plan import plan
from nanofn.schedule.view import view
from nanofn.state.decision import Decision, Policy
from nanofn.state.effects import Refused
from nanofn.state.engine_state import EngineState
from nanofn.state.events import Effect, Event, StepDecided

_MAX_EVENTS = 120


@frozen
class Counterexample:
    """A run that shows what is wrong.

    Attributes:
        limits: The bounds.
        events: From the beginning.
        problem: What is wrong.
        cycle_start: Number of the event from which on the events repeat for ever; None where they do not.
    """

    limits: Limits
    events: tuple[Event, ...]
    problem: str
    cycle_start: int | None = None


@frozen
class Run:
    """What came of a random run.

    Attributes:
        decisions: In order.
        counterexample: What went wrong, if anything did.
    """

    decisions: tuple[Decision, ...]
    counterexample: Counterexample | None


def random_run(policy: Policy[Any], seed: int) -> Run:
    """Let a policy decide in a run in which requests arrive and are aborted at random, one to three plans in flight.

    Raises nothing: what a policy or the core raises is the counterexample.
    """
    random = Random(seed)  # noqa: S311  a seed is what makes a run repeatable
    work, depth = Work(random_limits(random)), random.randint(1, 3)
    policy_state, decided = policy.init, list[Decision]()
    news: tuple[Effect, ...] = ()
    try:
        for number in range(_MAX_EVENTS):
            chance = random.random()
            if chance < 0.2 and number < _MAX_EVENTS // 2:
                news += work.arrive(random_request(random, number, work.state.limits.max_model_len))
            elif chance < 0.22:
                news += work.abort(RequestId(random.randint(0, number)))
            elif chance < 0.6 and len(work.state.in_flight) < depth and work.live_ids:
                policy_state, decision = policy.decide(policy_state, view(work.state, 1_000 * number, news))
                decided.append(decision)
                _require_fixed_point(work.state, decision)
                news = work.apply(StepDecided(decision, now_us=1_000 * number))
            elif work.executor.results:
                news += work.deliver()
    except Exception as error:  # noqa: BLE001  whatever is raised is a finding
        told = str(error) if isinstance(error, PolicyFault) else f"{type(error).__name__}: {error}"
        return Run(tuple(decided), Counterexample(work.state.limits, tuple(work.log), told))
    return Run(tuple(decided), None)


def _require_fixed_point(state: EngineState, decision: Decision) -> None:
    """A decision whose grants are rewritten to what they got gives the same plan, and nothing of it is refused."""
    _, step_plan = plan(state, decision)
    done = tuple([effect for effect in step_plan.effects if not isinstance(effect, Refused)])
    got = dict(zip(step_plan.entries.sequence_id, step_plan.entries.num_tokens, strict=True))
    changed = {getattr(effect, "sequence_id", None) for effect in done}
    normal = Decision(
        tuple([(each, got.get(each, 0)) for each in dict.fromkeys([key for key, _ in decision.grants])]),
        preempt=tuple([each for each in dict.fromkeys(decision.preempt) if each in state.running.sequence_id]),
        victims=decision.victims,
        shed=tuple([each for each in dict.fromkeys(decision.shed) if each in changed]),
        skip_blocked=decision.skip_blocked,
    )
    _, again = plan(state, normal)
    if (again.entries, again.new_blocks, again.effects) != (step_plan.entries, step_plan.new_blocks, done):
        raise AssertionError(f"rewritten to what it got, {decision} gives another plan")


def digest(policy: Policy[Any], seeds: Iterable[int]) -> str:
    """Hash all decisions of some random runs."""
    text = "\n".join([repr(decision) for seed in seeds for decision in random_run(policy, seed).decisions])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def digest_elsewhere(name: str, num_seeds: int) -> str:
    """Hash a named policy's decisions in a process whose text hashes differently, as sets and dicts of it do.

    Args:
        name: As `load_policy` takes it.
        num_seeds: Number of runs.
    """
    program = (
        "import sys; from nanofn.lab.contract import digest; from nanofn.lab.policy_file import load_policy; "
        "print(digest(load_policy(sys.argv[1]), range(int(sys.argv[2]))))"
    )
    seed = "1" if os.environ.get("PYTHONHASHSEED") == "0" else "0"
    done = subprocess.run(  # noqa: S603  this very program
        [sys.executable, "-c", program, name, str(num_seeds)],
        env=os.environ | {"PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return done.stdout.split()[-1] if done.returncode == 0 and done.stdout else f"failed: {done.stderr.strip()[-200:]}"
