"""transition: the whole state machine as one function of an event. Replay is its fold over a log."""

from typing import assert_never

from nanofn.schedule.abort import abort
from nanofn.schedule.admit import admit
from nanofn.schedule.commit import commit
from nanofn.schedule.fail import fail
from nanofn.schedule.hint import hint
from nanofn.schedule.plan import plan
from nanofn.schedule.reset_prefix_cache import reset_prefix_cache
from nanofn.schedule.stop import stop
from nanofn.state.engine_state import EngineState
from nanofn.state.events import (
    Effect,
    Event,
    HintChanged,
    Launched,
    PrefixCacheReset,
    RequestAborted,
    RequestArrived,
    StepCompleted,
    StepDecided,
    StepFailed,
    StopStringMatched,
)


def transition(state: EngineState, event: Event) -> tuple[EngineState, tuple[Effect, ...]]:
    """Move a state by one event.

    Returns:
        The next state and the effects in order. A decision's plan comes as `Launched`, after its own effects, also
        when it is empty.
    """
    match event:
        case RequestArrived(request):
            return admit(state, request)
        case RequestAborted(request_id):
            return abort(state, request_id)
        case StopStringMatched(sequence_id, num_output_tokens):
            return stop(state, sequence_id, num_output_tokens)
        case HintChanged(sequence_id, value):
            return hint(state, sequence_id, value)
        case PrefixCacheReset(preempt_running):
            return reset_prefix_cache(state, preempt_running)
        case StepDecided(decision):
            state, step_plan = plan(state, decision)
            return state, (*step_plan.effects, Launched(step_plan))
        case StepCompleted(plan_id, result):
            return commit(state, plan_id, result)
        case StepFailed(plan_id):
            return fail(state, plan_id)
        case _:
            assert_never(event)
