"""Mutation testing: plant every mutant of the core, and see that some check fails.

    nox -s mutate                          # all of state/, schedule/ and policy/
    nox -s mutate -- state/block_pool.py   # some files or folders
    nox -s mutate -- --quick               # without the last check, for whoever writes tests
    nox -s mutate -- --again               # what survived last time, and what was not tried
    nox -s mutate -- --more                # what was not tried last time
    nox -s mutate -- state --percent=25    # a sample: those whose name's CRC-32 says so, always the same
    nox -s mutate -- state --percent=25-50 # another one, that has nothing in common with the first

A process forks for each mutant, so importing everything anew costs a tenth of a second; libraries that mutate are not used,
because mutmut leaves out properties and class bodies and cosmic-ray starts a test run in a new process for each mutant.
A mutant is killed when a check fails, or does not end. The last check is slow: what is left meets it when all is judged
by the others, and what is listed as equivalent does not. One that survives is either listed in `equivalent.toml`, with the
reason why nothing can tell it from the source, or a gap in the tests, and then this program fails.
"""

import gc
import json
import os
import resource
import signal
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from zlib import crc32

import _hypothesis_pytestplugin  # noqa: F401  imported once, before the forks
import hypothesis.strategies  # noqa: F401
import pytest  # noqa: F401
import pytest_timeout  # noqa: F401
import rpds  # noqa: F401

from core.seeding import SOURCE, Bug, planted
from mutation.checks import CHECKS, checks_of, explorations, facts, many_facts, own_facts, random_works
from mutation.mutants import Mutant, all_mutants

FOLDERS = ("state", "schedule", "policy")
NUM_PROCESSES = 2
CPU_SECONDS = {explorations: 20, random_works: 20, own_facts: 20, facts: 60, many_facts: 250}
"""Processor time that each check may take: at least five times what it takes of the source as it is."""
UNCHANGED = [Bug("none", file, "@frozen", "@frozen") for file in ("policy/fcfs.py", "state/invariants.py")]
"""The source as it is: it meets all checks there are."""
Check = Callable[[str], None]
MEMORY_BYTES = 4 << 30
SURVIVED, HANG = "survived", "hang"
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
RESULTS = Path(os.environ.get("NANOFN_MUTATION_RESULTS", SOURCE.parents[1] / "scratch" / "mutation.json"))


def equivalents() -> dict[str, str]:
    """Mutants that behave as the source does, with the reasons."""
    return {
        name: reason
        for reason, names in tomllib.loads(EQUIVALENT.read_text("utf-8")).items()
        for name in names["mutants"]
    }


def place_in_sample(mutant: Mutant) -> int:
    """From which percentage on a mutant is in the sample: a smaller sample is part of every larger one."""
    return crc32(mutant.name.encode()) % 100


def judged(mutant: Mutant | Bug, checks: Sequence[Check]) -> int:
    """Plant a mutant in this process for good; returns the place of the check that failed, from 1, or 0."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    gc.disable()  # it would look through all that was imported before the fork, again and again
    with planted(mutant):
        for check in [each for each in checks_of(mutant.file) if each in checks]:
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS[check])  # its signal ends the process
            try:
                check(mutant.file)
            except BaseException:  # noqa: BLE001  whatever it is, it is noticed
                return CHECKS.index(check) + 1
    return 0


def verdicts(mutants: Sequence[Mutant | Bug], checks: Sequence[Check] = CHECKS) -> Iterator[tuple[Mutant | Bug, str]]:
    """Judge mutants, in child processes, by some of the checks; yields (mutant, verdict) as they come."""
    names, running = (SURVIVED, *[check.__name__ for check in CHECKS]), dict[int, Mutant | Bug]()
    for mutant in [*mutants, *[None] * NUM_PROCESSES]:
        if running and (mutant is None or len(running) == NUM_PROCESSES):
            process, status = os.wait()
            yield running.pop(process), HANG if os.WIFSIGNALED(status) else names[os.WEXITSTATUS(status)]
        if mutant is not None:
            process = os.fork()
            if not process:
                code = 1
                try:
                    code = judged(mutant, checks)
                finally:
                    os._exit(code)
            running[process] = mutant


def table(results: dict[str, str], reasons: dict[str, str]) -> str:
    """How many mutants of each folder were killed by what, and the score."""
    columns = (*[check.__name__ for check in CHECKS], HANG, SURVIVED)
    lines = [" | ".join(["folder", "mutants", *columns, "equivalent", "raw", "adjusted"])]
    for folder in (*FOLDERS, ""):
        verdict = {name: value for name, value in results.items() if name.startswith(folder)}
        count, same = Counter(verdict.values()), sum(name in reasons for name in verdict)
        killed = len(verdict) - count[SURVIVED]
        if verdict:
            scores = f"{killed / len(verdict):.1%}", f"{killed / max(len(verdict) - same, 1):.1%}"
            lines.append(
                " | ".join(map(str, [folder or "all", len(verdict), *[count[c] for c in columns], same, *scores]))
            )
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Run; returns 0 if nothing survives that is not equivalent."""
    RESULTS.parent.mkdir(exist_ok=True)
    mutants, reasons, start = all_mutants(SOURCE, *FOLDERS), equivalents(), perf_counter()
    unknown = set(reasons) - {mutant.name for mutant in mutants}
    assert not unknown, f"listed as equivalent, but no mutants: {unknown}"
    known = json.loads(RESULTS.read_text("utf-8")) if {"--again", "--more"} & {*arguments} else {}
    tried = {name for name, verdict in known.items() if verdict != SURVIVED or "--more" in arguments}
    percent = next((each.partition("=")[2] for each in arguments if each.startswith("--percent=")), "100")
    first, _, end = percent.rpartition("-")
    chosen = tuple(each for each in arguments if not each.startswith("--")) or FOLDERS
    mutants = sorted([each for each in mutants if each.file.startswith(chosen)], key=place_in_sample)
    mutants = [each for each in mutants if int(first or 0) <= place_in_sample(each) < int(end)]
    stages = (CHECKS[:-1],) if "--quick" in arguments else (CHECKS[:-1], CHECKS[-1:])
    unchanged = dict(verdicts(UNCHANGED, [check for stage in stages for check in stage]))
    assert {*unchanged.values()} == {SURVIVED}, f"without a mutant the checks end with: {unchanged}"
    results = {each.name: known[each.name] for each in mutants if each.name in tried}
    left = [each for each in mutants if each.name not in results]
    for stage in stages:
        for mutant, verdict in verdicts(left, stage):
            results[mutant.name] = verdict
            if verdict == SURVIVED and stage is stages[-1] and mutant.name not in reasons:
                print(mutant.name, flush=True)
            RESULTS.write_text(json.dumps(results, indent=1), "utf-8")
        left = [each for each in left if results[each.name] == SURVIVED and each.name not in reasons]
    wrong = [name for name, verdict in results.items() if name in reasons and verdict != SURVIVED]
    print(*[f"listed as equivalent, but killed: {name}" for name in wrong], table(results, reasons), sep="\n")
    print(f"{perf_counter() - start:.0f} s")
    return int(bool(wrong) or any(v == SURVIVED and name not in reasons for name, v in results.items()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
