"""Events: everything that moves the state. A run is the fold of its events, so a log of them replays it exactly."""

from typing import Literal

from attrs import frozen

from nanofn.request import Hint, PlanId, Request, RequestId, SequenceId
from nanofn.state.decision import Decision
from nanofn.state.effects import (
    Admitted,
    Finished,
    Preempted,
    PrefixCacheCleared,
    Refused,
    Rejected,
    Started,
    TokensCommitted,
)
from nanofn.state.step_plan import StepPlan, StepResult


@frozen
class RequestArrived:
    """A request asks to be admitted."""

    request: Request


@frozen
class RequestAborted:
    """Nobody wants a request's result any more."""

    request_id: RequestId


@frozen
class StopStringMatched:
    """The text layer found a stop string that ends after `num_output_tokens` tokens."""

    sequence_id: SequenceId
    num_output_tokens: int


@frozen
class HintChanged:
    """A predictor said something new."""

    sequence_id: SequenceId
    hint: Hint | None


@frozen
class PrefixCacheReset:
    """The prefix cache must be emptied, running sequences preempted if `preempt_running`."""

    preempt_running: bool


@frozen
class StepDecided:
    """A policy decided, or the guard in its place."""

    decision: Decision
    now_us: int
    decided_by: Literal["policy", "guard"] = "policy"


@frozen
class StepCompleted:
    """The oldest plan's result was read."""

    plan_id: PlanId
    result: StepResult


@frozen
class StepFailed:
    """A plan will have no result."""

    plan_id: PlanId


@frozen
class Launched:
    """A decision became a plan."""

    step_plan: StepPlan


Arrival = RequestArrived | RequestAborted | StopStringMatched | HintChanged | PrefixCacheReset
Event = Arrival | StepDecided | StepCompleted | StepFailed
Effect = (
    Admitted | Rejected | Started | Preempted | Refused | TokensCommitted | Finished | PrefixCacheCleared | Launched
)
