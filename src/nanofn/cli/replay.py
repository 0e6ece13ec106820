"""`nanofn replay run.jsonl`: repeat a recorded run, without the model, and compare every plan."""

import argparse
import sys
from collections.abc import Sequence

from nanofn.event_log import Replay, read_log, replay
from nanofn.lab.policy_file import load_policy


def run(arguments: Sequence[str]) -> int:
    """Replay a log; the summary goes to stdout. Returns 1 where the replay differs from the log."""
    parser = argparse.ArgumentParser(
        prog="nanofn replay",
        description="Fold an event log, as LLM(record=FILE) writes it, and compare every plan with the recorded one.",
    )
    parser.add_argument("log", metavar="FILE", help="the event log")
    parser.add_argument(
        "--policy",
        metavar="POLICY",
        help="let a policy decide again and show its first other decision: a built-in one's name, FILE.py or FILE.py:NAME",
    )
    given = parser.parse_args(arguments)
    policy = None if given.policy is None else load_policy(given.policy)
    log = read_log(given.log)
    done = replay(log, policy)
    if log.is_torn:
        sys.stderr.write(f"nanofn: the last line of {given.log} is cut off and left out\n")
    sys.stdout.write(summary(done))
    return int(done.difference is not None)


def summary(done: Replay) -> str:
    """Say what a replay did, and where it first differed."""
    text = (
        f"{done.num_events:,} events, {done.num_plans:,} plans, {done.num_tokens:,} output tokens, "
        f"{done.num_finished:,} sequences ended, {done.num_preemptions:,} preemptions\n"
        f"plan hash {done.plan_hash or 'none: nothing was planned'}\n"
    )
    difference = done.difference
    if difference is None:
        return text + "as recorded\n"
    return text + (
        f"differs at line {difference.line}, decision {difference.step}:\n"
        f"  recorded {_said(difference.logged)}\n  found    {_said(difference.found)}\n"
    )


def _said(found: object) -> str:
    return f"{type(found).__name__}: {found}" if isinstance(found, Exception) else str(found)
