"""The loop: decide, plan, launch, commit. The one place where the state is rebound."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, Protocol

from nanofn.batch.masks import Masks
from nanofn.batch.row_start import RowStart
from nanofn.batch.step_output import StepOutput
from nanofn.config import Limits
from nanofn.device.executor import Executor
from nanofn.errors import StepError
from nanofn.llm.clock import now_us
from nanofn.llm.guard import oldest_first, patience
from nanofn.request import PlanId, RequestId
from nanofn.schedule.transition import transition
from nanofn.schedule.view import view
from nanofn.state.decision import Policy
from nanofn.state.effects import Started, TokensCommitted
from nanofn.state.engine_state import EngineState, find, initial_state
from nanofn.state.events import Effect, Event, Launched, StepCompleted, StepDecided, StepFailed
from nanofn.state.sequence import Sequence as SequenceRecord
from nanofn.state.step_plan import StepPlan, StepResult
from nanofn.state.view import View

logger = logging.getLogger("nanofn")
_LONGEST_SLEEP_S = 0.1


class Observer(Protocol):
    """Who keeps what the core leaves out: token logs, texts, parameters."""

    def row_start(self, sequence: SequenceRecord) -> RowStart:
        """Say what a started sequence's row must know."""
        ...

    def awaits_masks(self, step_plan: StepPlan) -> bool:
        """Tell whether any of a plan's rows that sample follows a grammar."""
        ...

    def masks(self, step_plan: StepPlan) -> Masks:
        """Say which ids a plan's rows may choose, where they follow a grammar. All earlier plans are committed."""
        ...

    def read(self, output: StepOutput) -> None:
        """Take a plan's results, right before they are committed."""
        ...

    def absorb(self, state: EngineState, effects: tuple[Effect, ...]) -> None:
        """Take the effects of an event, right after it, and the state that it led to: what the next plans depend on."""
        ...

    def deliver(self) -> None:
        """Make texts, streams and results of all that was absorbed."""
        ...


class Loop:
    """Folds events into the state, and keeps an executor up to `depth` plans busy.

    Attributes:
        state: The engine's state. Replaced as a whole at every event.
        depth: Most plans in flight: 1 waits for each result, 2 plans a step while the one before runs.
    """

    def __init__(
        self,
        limits: Limits,
        executor: Executor,
        policy: Policy[Any],
        *,
        depth: int,
        observer: Observer,
        record: Callable[[Event, tuple[Effect, ...]], None] | None = None,
    ) -> None:
        """Start with nothing.

        Args:
            limits: The bounds.
            executor: Runs the plans. The loop does not close it.
            policy: Decides.
            depth: Most plans in flight.
            observer: Keeps texts and parameters.
            record: Gets every event with its effects, for a log.
        """
        self.state = initial_state(limits)
        self.depth = depth
        self._executor = executor
        self._policy = policy
        self._policy_state = policy.init
        self._observer = observer
        self._record = record
        # The plan launched last, while its tokens are not chosen: masks depend on the tokens of all earlier plans.
        self._awaits_masks: StepPlan | None = None
        self._news: list[Effect] = []
        self._patience = patience(limits)
        self._steps_without_output = 0
        self._wake_us: int | None = None

    @property
    def has_unfinished(self) -> bool:
        """Whether any sequence lives."""
        return bool(len(self.state.running) or len(self.state.waiting))

    def apply(self, event: Event) -> tuple[Effect, ...]:
        """Move the state by an event and deliver the effects."""
        effects = self._fold(event)
        self._observer.deliver()
        return effects

    def _fold(self, event: Event) -> tuple[Effect, ...]:
        state, effects = transition(self.state, event)
        self._rebind(event, state, effects)
        return effects

    def _rebind(self, event: Event, state: EngineState, effects: tuple[Effect, ...]) -> None:
        self.state = state
        self._news.extend(effects)
        self._observer.absorb(state, effects)
        if self._record is not None:
            self._record(event, effects)

    def step(self) -> None:
        """Launch until `depth` plans fly, one awaits masks or nothing can be planned, then commit the oldest.

        Raises:
            StepError: The executor failed. That plan and all later ones are dropped, their sequences wait again.
        """
        while self._may_launch() and self._launch():
            pass
        if self.state.in_flight:
            self._commit()
            self._sample()
        elif self.has_unfinished:
            self._sleep()
        # After the masks: a device that waits for them waits for no text.
        self._observer.deliver()

    def _may_launch(self) -> bool:
        return self.has_unfinished and len(self.state.in_flight) < self.depth and self._awaits_masks is None

    def _launch(self) -> bool:
        """Plan one step and launch it; False where nothing was planned."""
        step_plan = self._plan()
        if step_plan.plan_id is None:
            return False
        self._steps_without_output += 1
        try:
            awaits_masks = self._observer.awaits_masks(step_plan)
            self._executor.launch(step_plan, self._starts(step_plan), awaits_masks=awaits_masks)
        except BaseException as error:  # noqa: BLE001  Ctrl-C too must leave state and executor in step
            self._fail(step_plan.plan_id, error)
        if awaits_masks:
            self._awaits_masks = step_plan
            self._sample()
        return True

    def _sample(self) -> None:
        """Have the tokens chosen of the plan that awaits masks, if there is one and all earlier ones are committed."""
        step_plan = self._awaits_masks
        if step_plan is None or len(self.state.in_flight) > 1:
            return
        assert step_plan.plan_id is not None
        self._awaits_masks = None
        try:
            self._executor.sample(self._observer.masks(step_plan))
        except BaseException as error:  # noqa: BLE001  as above
            self._executor.forget()
            self._fail(step_plan.plan_id, error)

    def _plan(self) -> StepPlan:
        """Let the policy decide and plan that; the guard steps in where the policy fails or leaves no way on."""
        seen = view(self.state, now_us(), tuple(self._news))
        if self._steps_without_output > self._patience:
            if self._steps_without_output == self._patience + 1:
                logger.warning("no output token in %d steps: the guard decides until one comes", self._patience)
            return self._guarded(seen)
        try:
            policy_state, decision = self._policy.decide(self._policy_state, seen)
            event = StepDecided(decision, seen.now_us)
            planned, wake_us = transition(self.state, event), decision.wake_us
        except Exception:
            # `transition` is pure: where it chokes on what is no Decision at all, the state is as before.
            logger.warning("the policy failed: the guard decides this step", exc_info=True)
            return self._guarded(seen)
        self._policy_state, self._wake_us = policy_state, wake_us
        self._news.clear()
        step_plan = self._rebound(event, planned)
        idles = wake_us is not None and wake_us > seen.now_us
        if step_plan.plan_id is None and not self.state.in_flight and self.has_unfinished and not idles:
            return self._guarded(view(self.state, seen.now_us))  # nothing flies, so waiting would change nothing
        return step_plan

    def _guarded(self, seen: View) -> StepPlan:
        event = StepDecided(oldest_first(seen), seen.now_us, "guard")
        return self._rebound(event, transition(self.state, event))

    def _rebound(self, event: StepDecided, planned: tuple[EngineState, tuple[Effect, ...]]) -> StepPlan:
        self._rebind(event, *planned)
        launched = planned[1][-1]
        assert isinstance(launched, Launched)
        return launched.step_plan

    def _starts(self, step_plan: StepPlan) -> Sequence[RowStart]:
        started = [effect.sequence_id for effect in step_plan.effects if isinstance(effect, Started)]
        records = [self.state.running.get(sequence_id) for sequence_id in started]
        return [self._observer.row_start(record) for record in records if record is not None]

    def _commit(self) -> None:
        plan_id = self.state.in_flight[0].plan_id
        assert plan_id is not None
        try:
            output = self._executor.collect()
        except BaseException as error:  # noqa: BLE001  as above
            self._executor.forget()
            self._fail(plan_id, error)
        self._observer.read(output)
        effects = self._fold(StepCompleted(plan_id, StepResult(output.token_ids, now_us())))
        if any(isinstance(effect, TokensCommitted) for effect in effects):
            self._steps_without_output = 0

    def _fail(self, plan_id: PlanId, error: BaseException) -> NoReturn:
        self._awaits_masks = None
        dropped = [step_plan for step_plan in self.state.in_flight if (step_plan.plan_id or 0) >= plan_id]
        self.apply(StepFailed(plan_id))
        if not isinstance(error, Exception):
            raise error
        raise StepError(self._requests_of(dropped), error) from error

    def _requests_of(self, plans: Iterable[StepPlan]) -> tuple[RequestId, ...]:
        named = [find(self.state, sequence_id) for step_plan in plans for sequence_id in step_plan.entries.sequence_id]
        return tuple(sorted({sequence.request.request_id for sequence in named if sequence is not None}))

    def _sleep(self) -> None:
        """Idle as the policy asked, in short naps, so that a caller between steps is heard."""
        if self._wake_us is not None:
            time.sleep(min(max(self._wake_us - now_us(), 0) / 1e6, _LONGEST_SLEEP_S))
