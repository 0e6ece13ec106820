"""replay: fold a log. The same plans must come out; or let a policy decide again, and see where it first decides otherwise."""

from collections.abc import Iterator
from typing import Any

from attrs import frozen

from nanofn.event_log.encoding import next_hash
from nanofn.event_log.read import Log
from nanofn.schedule.transition import transition
from nanofn.schedule.view import view
from nanofn.state.decision import Policy
from nanofn.state.effects import Finished, Preempted, TokensCommitted
from nanofn.state.engine_state import EngineState, initial_state
from nanofn.state.events import Effect, Launched, StepDecided


@frozen
class Difference:
    """Where a replay first differs from its log.

    Attributes:
        line: In the log's file.
        step: Decisions before it.
        logged: What the log says.
        found: What came out.
    """

    line: int
    step: int
    logged: object
    found: object


@frozen
class Replay:
    """What came of a replay.

    Attributes:
        state: The last state.
        num_events: Events folded.
        num_plans: Plans with entries.
        num_tokens: Output tokens committed.
        num_finished: Sequences that ended.
        num_preemptions: How often a sequence lost its blocks.
        plan_hash: Of all plans.
        difference: The first one; None if all is as logged.
    """

    state: EngineState
    num_events: int
    num_plans: int
    num_tokens: int
    num_finished: int
    num_preemptions: int
    plan_hash: str
    difference: Difference | None


def replay(log: Log, policy: Policy[Any] | None = None) -> Replay:
    """Fold a log, to its end or to the first difference.

    Args:
        log: The run.
        policy: Decides again wherever a policy had decided, and its decision is compared instead of followed. None
            compares plans alone.
    """
    state, plan_hash = initial_state(log.limits), ""
    decide = None if policy is None else Again(policy)
    counts = dict.fromkeys(("events", "plans", "tokens", "finished", "preemptions"), 0)
    difference, step = None, 0
    for logged in log.logged:
        event = logged.event
        if decide is not None and isinstance(event, StepDecided) and event.decided_by == "policy":
            found = decide(state, event)
            if found != event.decision:
                difference = Difference(logged.line, step, event.decision, found)
                break
        state, effects = transition(state, event)
        counts["events"] += 1
        for name, count in _counted(effects):
            counts[name] += count
        if isinstance(event, StepDecided):
            launched = effects[-1]
            assert isinstance(launched, Launched)
            plan_hash = next_hash(plan_hash, launched.step_plan)
            if logged.plan_hash not in (None, plan_hash):
                difference = Difference(logged.line, step, logged.plan_hash, plan_hash)
                break
            step += 1
        if decide is not None:
            decide.news.extend(effects)
    numbers = {f"num_{name}": count for name, count in counts.items()}
    return Replay(state=state, plan_hash=plan_hash, difference=difference, **numbers)


class Again:
    """A policy with its state and the news since it last decided, as the loop holds them."""

    def __init__(self, policy: Policy[Any]) -> None:
        self.news: list[Effect] = []
        self._policy = policy
        self._policy_state = policy.init

    def __call__(self, state: EngineState, event: StepDecided) -> object:
        """Decide; an exception counts as the decision."""
        try:
            self._policy_state, decision = self._policy.decide(
                self._policy_state, view(state, event.now_us, tuple(self.news))
            )
        except Exception as error:  # noqa: BLE001  whatever a policy raises is what it answers
            return error
        self.news.clear()
        return decision


def _counted(effects: tuple[Effect, ...]) -> Iterator[tuple[str, int]]:
    for effect in effects:
        match effect:
            case TokensCommitted(_, token_ids, _):
                yield "tokens", len(token_ids)
            case Finished():
                yield "finished", 1
            case Preempted():
                yield "preemptions", 1
            case Launched(step_plan):
                yield "plans", int(step_plan.plan_id is not None)
            case _:
                pass
