"""A program to count the instructions of: decodes of 16 sequences, at some context, queue and pool.

`python steady_steps.py CONTEXT WAITING NUM_BLOCKS STEPS` under `valgrind --tool=callgrind --instr-atstart=no`: only the
steps count, and what a run with no step counts is subtracted by whoever compares.
"""

import gc
import os
import subprocess
import sys

from nanofn.config import Limits
from nanofn.policy import fcfs
from nanofn.request import Request, RequestId, TokenId
from nanofn.schedule.admit import admit
from nanofn.schedule.commit import commit
from nanofn.schedule.plan import plan
from nanofn.schedule.view import view
from nanofn.state.engine_state import initial_state
from nanofn.state.step_plan import StepResult

NUM_RUNNING, BLOCK_SIZE, WARM_UP = 16, 16, 64


def step(state, news):
    """One step of the default policy."""
    _, decision = fcfs.decide(None, view(state, 0, news))
    state, step_plan = plan(state, decision)
    result = StepResult((TokenId(7),) * sum(step_plan.entries.samples), 0)
    state, effects = commit(state, step_plan.plan_id, result)
    return state, (*step_plan.effects, *effects)


def prepared(context, num_waiting, num_blocks):
    """16 sequences that decode at about `context` tokens, and others behind them that have no row."""
    # All prompts in one step, of different lengths: then at every size a block ends in each step, and not 16 in one.
    limits = Limits(BLOCK_SIZE, num_blocks, NUM_RUNNING, NUM_RUNNING * context, context + 1_024)
    state = initial_state(limits)
    for number in range(NUM_RUNNING):
        state, _ = admit(state, Request(RequestId(number), (number,) + (1,) * (context - 1 - number), 1_000))
    for number in range(NUM_RUNNING, NUM_RUNNING + num_waiting):
        state, _ = admit(state, Request(RequestId(number), (1, 2, 3), 100))
    news = ()
    while not state.running or state.running.decodes is None or len(state.running) < NUM_RUNNING:
        state, news = step(state, news)
    for _ in range(WARM_UP):
        state, news = step(state, news)
    return state, news


def collect(is_on):
    """Switch the counting, where there is any."""
    if os.environ.get("VALGRIND_TOOL") == "callgrind":
        subprocess.run(["callgrind_control", "-i", is_on, str(os.getpid())], check=True, stdout=subprocess.DEVNULL)


def main():
    """Prepare, then count."""
    context, num_waiting, num_blocks, num_steps = map(int, sys.argv[1:])
    gc.disable()  # or a million admissions go through the young generations again and again
    state, news = prepared(context, num_waiting, num_blocks)
    gc.freeze()  # a collection of everything else in the process is not a step's work
    gc.enable()
    collect("on")
    for _ in range(num_steps):
        state, news = step(state, news)
    collect("off")
    assert len(state.running) == NUM_RUNNING
    assert len(state.waiting) == num_waiting


if __name__ == "__main__":
    main()
