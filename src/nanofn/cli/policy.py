"""`nanofn policy check my_policy.py`: is a scheduling policy pure, lawful and fair? `nanofn policy new`: begin one."""

import argparse
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from nanofn.errors import PolicyFileError
from nanofn.event_log import write_log
from nanofn.lab.check import Finding, check, num_findings
from nanofn.lab.contract import Counterexample
from nanofn.lab.guarded import PolicyFault, time_limit
from nanofn.lab.policy_file import BUILT_IN, load_policy
from nanofn.lab.timeline import timeline
from nanofn.state.decision import Policy

_SIGNS = {"holds": "ok", "fails": "FAILS", "unknown": "?"}
_MAX_IMPORT_SECONDS = 10.0


def run(arguments: Sequence[str]) -> int:
    """Check or begin a policy. Returns 0 if all holds, 1 if something fails or stays unknown, 2 if there is no such policy."""
    parser = argparse.ArgumentParser(prog="nanofn policy", description="Scheduling policies: check one, or begin one.")
    commands = parser.add_subparsers(dest="command", required=True)
    checks = commands.add_parser(
        "check", help="check a policy's purity, lawfulness, safety and liveness: about a minute"
    )
    checks.add_argument("policy", metavar="POLICY", help="FILE.py, FILE.py:NAME, or a built-in one's name")
    checks.add_argument(
        "--log", metavar="FILE", default="counterexample.jsonl", help="where the counterexample goes, if there is one"
    )
    begins = commands.add_parser("new", help="write a template that passes the check")
    begins.add_argument("file", metavar="FILE", nargs="?", default="my_policy.py", help="default: my_policy.py")
    given = parser.parse_args(arguments)
    try:
        return _new(Path(given.file)) if given.command == "new" else _check(given.policy, Path(given.log))
    except PolicyFileError as error:
        sys.stderr.write(f"nanofn: {error}\n")
        return 2


def _new(file: Path) -> int:
    from nanofn.lab import template

    if file.exists():
        raise PolicyFileError(f"{file} is there already; name another file")
    try:
        file.write_text(inspect.getsource(template), encoding="utf-8")
    except OSError as error:
        raise PolicyFileError(f"{file} cannot be written: {error.strerror}") from error
    sys.stdout.write(f"{file} is a policy; check it with: nanofn policy check {file}\n")
    return 0


def _check(name: str, log: Path) -> int:
    start = perf_counter()
    policy = _loaded(name)
    source = None if name in BUILT_IN else Path(name if name.endswith(".py") else name.rpartition(":")[0])
    findings = list(_with_progress(policy, name, source))
    failed = [finding for finding in findings if finding.verdict == "fails"]
    unknown = [finding for finding in findings if finding.verdict == "unknown"]
    shown = next((each for each in failed if each.counterexample is not None), None)
    if shown is not None and shown.counterexample is not None:
        sys.stdout.write(_story(shown.name, shown.counterexample, log, name))
    verdict = "all holds" if not failed and not unknown else f"{len(failed)} fail, {len(unknown)} unknown"
    sys.stdout.write(f"{name}: {verdict} ({perf_counter() - start:.0f} s)\n")
    if any(finding.name.startswith("liveness") for finding in failed):
        sys.stdout.write("nanofn.policy.patience(policy, num_steps) gives everybody their turn under any policy.\n")
    return int(bool(failed or unknown))


def _loaded(name: str) -> Policy[Any]:
    try:
        with time_limit(_MAX_IMPORT_SECONDS):
            policy = load_policy(name)
    except PolicyFault as fault:
        raise PolicyFileError(f"{name} is loaded, but {fault}") from fault
    try:
        hash(policy.init)
    except Exception as error:
        raise PolicyFileError(
            f"{name}: `init` is not immutable ({error}); make it a tuple or a frozen record"
        ) from error
    return policy


def _with_progress(policy: Policy[Any], name: str, source: Path | None) -> list[Finding]:
    """Write each finding when it is made, and a bar below them on a terminal."""
    from tqdm import tqdm

    findings = []
    bar = tqdm(
        total=num_findings(source),
        desc="checking",
        unit="part",
        disable=not sys.stderr.isatty(),
        leave=False,
        delay=0.5,
    )
    with bar:
        for finding in check(policy, name, source, lambda states: bar.set_postfix_str(f"{states:,} states")):
            line = f"{_SIGNS[finding.verdict]:<6} {finding.name:<36} {finding.detail}"
            bar.write(line, file=sys.stdout)
            bar.update()
            findings.append(finding)
    return findings


def _story(title: str, found: Counterexample, log: Path, name: str) -> str:
    """Tell a counterexample, and write it as an event log."""
    text = f"\n{title}:\n{timeline(found.limits, found.events, found.problem, found.cycle_start)}"
    try:
        write_log(log, found.limits, found.events, policy=name, problem=found.problem)
    except Exception as error:  # noqa: BLE001  a core that chokes on the last event cannot fold it either
        return f"{text}{log} was not written whole: {type(error).__name__}: {error}\n\n"
    return f"{text}replay it with: nanofn replay {log}\n\n"
