"""Transitions that really happen: those of random works under decisions that no policy would make, up to depth 3."""

from functools import cache

from attrs import frozen

from nanofn.lab.random_work import random_work
from nanofn.schedule.transition import transition
from nanofn.state.engine_state import EngineState, initial_state
from nanofn.state.events import Effect, Event

NUM_WORKS = 120


@frozen(eq=False)
class Step:
    """One transition of a run: what was, what happened, what is."""

    before: EngineState
    event: Event
    after: EngineState
    effects: tuple[Effect, ...]


@cache
def runs():
    """Random runs, each as its steps from the empty state to an idle one."""
    found = []
    for seed in range(5_000, 5_000 + NUM_WORKS):
        work = random_work(seed, checked=False)
        state, steps = initial_state(work.state.limits), []
        for event in work.log:
            after, effects = transition(state, event)
            steps.append(Step(state, event, after, effects))
            state = after
        found.append(tuple(steps))
    return tuple(found)


def steps(*kinds):
    """The steps of all runs whose events are of some kinds; all without."""
    return [step for run in runs() for step in run if not kinds or isinstance(step.event, kinds)]


def effects_of(step, kind):
    """A step's effects of one kind."""
    return [effect for effect in step.effects if isinstance(effect, kind)]
