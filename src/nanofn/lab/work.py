"""Drives the real core with the shadow executor: the loop's part in short, for tests and checks of whole runs."""

from typing import Any

from nanofn.config import Limits
from nanofn.lab.shadow import ShadowExecutor, expected_output
from nanofn.request import PlanId, Request, RequestId, SequenceId, TokenId
from nanofn.schedule.transition import transition
from nanofn.schedule.view import view
from nanofn.state.decision import Decision, Policy
from nanofn.state.effects import Admitted, Finished, Preempted, TokensCommitted
from nanofn.state.engine_state import find, initial_state
from nanofn.state.events import (
    Effect,
    Event,
    Launched,
    RequestAborted,
    RequestArrived,
    StepCompleted,
    StepDecided,
    StepFailed,
    StopStringMatched,
)
from nanofn.state.step_invariants import step_violations
from nanofn.state.step_plan import StepPlan


class WorkError(AssertionError):
    """A rule was broken in a run."""


class Work:
    """One run: the state, the shadow executor, and what came out."""

    def __init__(self, limits: Limits, *, checked: bool = True) -> None:
        self.state = initial_state(limits)
        self.executor = ShadowExecutor(limits.block_size)
        self.checked = checked
        self.outputs: dict[SequenceId, list[TokenId]] = {}
        self.endings: dict[SequenceId, tuple[str, int]] = {}
        self.owner: dict[SequenceId, tuple[Request, int]] = {}
        self.cut: dict[SequenceId, str] = {}
        self.num_preemptions = 0
        self.log: list[Event] = []

    def apply(self, event: Event, *, fails: bool = False) -> tuple[Effect, ...]:
        """Take one event through the real transition, the invariants and the shadow executor."""
        before = self.state
        self.state, effects = transition(before, event)
        self.log.append(event)
        if self.checked:
            findings = step_violations(before, event, self.state, effects)
            require(not findings, findings)
        for effect in effects:
            self._follow(event, effect, fails=fails)
        return effects

    def _follow(self, event: Event, effect: Effect, *, fails: bool) -> None:
        match effect:
            case Admitted(_, sequence_ids) if isinstance(event, RequestArrived):
                self.owner |= {each: (event.request, child) for child, each in enumerate(sequence_ids)}
                self.outputs |= {each: [] for each in sequence_ids}
            case TokensCommitted(sequence_ids, token_ids, counts):
                for sequence_id, token_id, count in zip(sequence_ids, token_ids, counts, strict=True):
                    self.outputs[sequence_id].append(token_id)
                    known = self.owner[sequence_id][0].num_prompt_tokens + len(self.outputs[sequence_id])
                    require(known == count, f"sequence {sequence_id} has {known} tokens, told are {count}")
            case Finished(sequence_id, reason, _, num_output_tokens):
                require(sequence_id not in self.endings, f"sequence {sequence_id} ended twice")
                self.endings[sequence_id] = (reason, num_output_tokens)
                if reason == "abort" or isinstance(event, StopStringMatched):
                    self.cut[sequence_id] = reason
            case Preempted():
                self.num_preemptions += 1
            case Launched(step_plan) if step_plan.plan_id is not None:
                self.executor.launch(self.state, step_plan, self.known_tokens, fails=fails)
            case _:
                pass

    def known_tokens(self, sequence_id: int) -> tuple[TokenId, ...]:
        """Prompt and committed output of a live sequence."""
        sequence = find(self.state, SequenceId(sequence_id))
        assert sequence is not None
        outputs = self.outputs[sequence.sequence_id][: sequence.num_output_tokens]
        return (*sequence.request.prompt_token_ids, *outputs)

    def arrive(self, request: Request) -> tuple[Effect, ...]:
        """Queue a request."""
        return self.apply(RequestArrived(request))

    def step(self, decision: Decision, *, fails: bool = False) -> StepPlan:
        """Plan and launch; returns the plan."""
        launched = self.apply(StepDecided(decision, now_us=0), fails=fails)[-1]
        assert isinstance(launched, Launched)
        return launched.step_plan

    def deliver(self) -> tuple[Effect, ...]:
        """Deliver the oldest result, or its failure."""
        plan_id, result = self.executor.results.popleft()
        return self.fail(plan_id) if result is None else self.apply(StepCompleted(plan_id, result))

    def fail(self, plan_id: PlanId) -> tuple[Effect, ...]:
        """Drop a plan and all later ones."""
        while self.executor.results and self.executor.results[-1][0] >= plan_id:
            self.executor.results.pop()
        return self.apply(StepFailed(plan_id))

    def abort(self, request_id: RequestId) -> tuple[Effect, ...]:
        """Abort a request, alive or not."""
        return self.apply(RequestAborted(request_id))

    @property
    def live_ids(self) -> tuple[SequenceId, ...]:
        """Running sequences, then waiting ones."""
        return (*self.state.running.sequence_id, *[key for key, _ in self.state.waiting])

    @property
    def is_idle(self) -> bool:
        """Whether nothing lives and nothing flies."""
        return not (len(self.state.running) or len(self.state.waiting) or self.state.in_flight)

    def drain(self, policy: Policy[Any], *, depth: int = 1, max_steps: int = 10_000) -> int:
        """Let a policy run the rest at the given depth; returns the number of steps with entries."""
        policy_state, news, num_steps = policy.init, tuple[Effect, ...](), 0
        while not self.is_idle:
            launched = True
            while launched and len(self.state.in_flight) < depth:
                policy_state, decision = policy.decide(policy_state, view(self.state, 0, news))
                news = self.apply(StepDecided(decision, now_us=0))
                launched = isinstance(news[-1], Launched) and news[-1].step_plan.plan_id is not None
                num_steps += launched
                require(num_steps < max_steps, "the work does not end")
            require(len(self.state.in_flight) > 0, f"stuck: {self.state}")
            news += self.deliver()
        return num_steps

    def check_all_returned(self) -> None:
        """Nothing is left of what ended, and every block can be allocated."""
        state = self.state
        require(state.pool.num_free == state.limits.num_blocks, f"{state.pool.num_free} blocks are free at the end")
        require(len(state.rows) == state.limits.max_num_seqs, f"{len(state.rows)} rows are free at the end")
        require(len(state.pool.shared) == 0, "a block is shared at the end")
        require(len(state.by_request) == 0, "a request is remembered at the end")
        require(set(self.endings) == set(self.owner), "not every sequence has ended once")

    def check_outputs(self) -> None:
        """Every sequence's output is that of an unlimited pool, or the part of it that its abort or stop left."""
        for sequence_id, (request, child) in self.owner.items():
            wanted, reason = expected_output(request, child, self.state.limits.max_model_len)
            ended, count = self.endings[sequence_id]
            output = self.outputs[sequence_id][:count]
            if sequence_id in self.cut:
                wanted, reason = wanted[:count], self.cut[sequence_id]
            require(
                (output, ended) == (wanted, reason), f"sequence {sequence_id}: {output} {ended}, not {wanted} {reason}"
            )


def require(condition: bool, message: object) -> None:
    """Raise `WorkError` where a rule is broken; unlike `assert`, also under `python -O`."""
    if not condition:
        raise WorkError(message)
