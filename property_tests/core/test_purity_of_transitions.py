"""Transitions are functions of the values they are given, and of nothing else."""

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from core.rebuilt import rebuilt
from nanofn.lab.random_work import random_work
from nanofn.policy import fcfs, prefill_first
from nanofn.schedule.transition import transition
from nanofn.schedule.view import view
from nanofn.state.engine_state import initial_state
from nanofn.state.events import Launched, StepDecided


def replayed(seed):
    """Every (state, event) of a random work."""
    work = random_work(seed, checked=False)
    state = initial_state(work.state.limits)
    for event in work.log:
        yield state, event
        state, _ = transition(state, event)
    assert state == work.state


@pytest.mark.parametrize("seed", range(20))
def test_equal_arguments_give_equal_results(seed: int) -> None:
    """A transition called twice gives the same, also on an equal state that was built in another order."""
    random = Random(seed)
    for state, event in replayed(seed):
        before = repr(state)
        expected = transition(state, event)
        copy = rebuilt(state, random)
        assert copy == state
        assert hash(copy) == hash(state)
        assert transition(copy, event) == expected
        assert repr(state) == before  # the argument is untouched
        assert hash(expected) == hash(transition(state, event))  # results are immutable all the way down


@pytest.mark.parametrize("seed", range(100, 120))
@pytest.mark.parametrize("policy", [fcfs, prefill_first])
def test_policies_are_functions_of_what_they_see(seed: int, policy) -> None:
    """A policy decides the same on an equal state that was built in another order, and its state is hashable."""
    random = Random(seed)
    for state, event in replayed(seed):
        if isinstance(event, StepDecided):
            expected = policy.decide(policy.init, view(state, 0))
            assert policy.decide(policy.init, view(rebuilt(state, random), 0)) == expected
            assert hash(expected) is not None


PRINT_PLANS = """
from core.test_purity_of_transitions import plan_log
print(plan_log(range(200, 230)))
"""


def plan_log(seeds):
    """The plans of some random works, as text."""
    plans = []
    for seed in seeds:
        for state, event in replayed(seed):
            plans += [effect.step_plan for effect in transition(state, event)[1] if isinstance(effect, Launched)]
    return repr(plans)


def test_plans_do_not_depend_on_the_hash_seed() -> None:
    """Two processes with different hash seeds make the same plans."""
    folder = Path(__file__).parents[1]
    logs = {
        subprocess.run(
            [sys.executable, "-c", PRINT_PLANS],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(folder)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(logs) == 1
    assert len(logs.pop()) > 10_000
