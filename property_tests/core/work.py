"""Drives the real core with the shadow executor: the loop's part in forty lines, for tests of whole runs."""

from collections import defaultdict

from core.shadow import ShadowExecutor, expected_output
from nanofn.schedule.transition import transition
from nanofn.schedule.view import view
from nanofn.state.effects import Admitted, Finished, Preempted, TokensCommitted
from nanofn.state.engine_state import find, initial_state
from nanofn.state.events import (
    Launched,
    RequestAborted,
    RequestArrived,
    StepCompleted,
    StepDecided,
    StepFailed,
    StopStringMatched,
)
from nanofn.state.step_invariants import step_violations


class Work:
    """One run: the state, the shadow executor, and what came out."""

    def __init__(self, limits, *, checked=True):
        self.state = initial_state(limits)
        self.executor = ShadowExecutor(limits.block_size)
        self.checked = checked
        self.outputs = defaultdict(list)
        self.endings = {}
        self.owner = {}
        self.cut = {}
        self.num_preemptions = 0
        self.log = []

    def apply(self, event, *, fails=False):
        """Take one event through the real transition, the invariants and the shadow executor."""
        before = self.state
        self.state, effects = transition(before, event)
        self.log.append(event)
        if self.checked:
            findings = step_violations(before, event, self.state, effects)
            assert not findings, findings
        for effect in effects:
            match effect:
                case Admitted(_, sequence_ids):
                    self.owner |= {each: (event.request, child) for child, each in enumerate(sequence_ids)}
                case TokensCommitted(sequence_ids, token_ids, counts):
                    for sequence_id, token_id, count in zip(sequence_ids, token_ids, counts, strict=True):
                        self.outputs[sequence_id].append(token_id)
                        prompt = self.owner[sequence_id][0].num_prompt_tokens
                        assert prompt + len(self.outputs[sequence_id]) == count
                case Finished(sequence_id, reason, _, num_output_tokens):
                    assert sequence_id not in self.endings
                    self.endings[sequence_id] = (reason, num_output_tokens)
                    if reason == "abort" or isinstance(event, StopStringMatched):
                        self.cut[sequence_id] = reason
                case Preempted():
                    self.num_preemptions += 1
                case Launched(step_plan) if step_plan.plan_id is not None:
                    self.executor.launch(self.state, step_plan, self.known_tokens, fails=fails)
        return effects

    def known_tokens(self, sequence_id):
        """Prompt and committed output of a live sequence."""
        sequence = find(self.state, sequence_id)
        return (*sequence.request.prompt_token_ids, *self.outputs[sequence_id][: sequence.num_output_tokens])

    def arrive(self, request):
        """Queue a request."""
        return self.apply(RequestArrived(request))

    def step(self, decision, *, fails=False):
        """Plan and launch; returns the plan."""
        return self.apply(StepDecided(decision, now_us=0), fails=fails)[-1].step_plan

    def deliver(self):
        """Deliver the oldest result, or its failure."""
        plan_id, result = self.executor.results.popleft()
        if result is None:
            return self.fail(plan_id)
        return self.apply(StepCompleted(plan_id, result))

    def fail(self, plan_id):
        """Drop a plan and all later ones."""
        while self.executor.results and self.executor.results[-1][0] >= plan_id:
            self.executor.results.pop()
        return self.apply(StepFailed(plan_id))

    def abort(self, request_id):
        """Abort a request, alive or not."""
        return self.apply(RequestAborted(request_id))

    @property
    def live_ids(self):
        """Running sequences, then waiting ones."""
        return (*self.state.running.sequence_id, *[key for key, _ in self.state.waiting])

    @property
    def is_idle(self):
        """Whether nothing lives and nothing flies."""
        return not (len(self.state.running) or len(self.state.waiting) or self.state.in_flight)

    def drain(self, policy, *, depth=1, max_steps=10_000):
        """Let a policy run the rest at the given depth; returns the number of steps with entries."""
        policy_state, news, num_steps = policy.init, (), 0
        while not self.is_idle:
            launched = True
            while launched and len(self.state.in_flight) < depth:
                policy_state, decision = policy.decide(policy_state, view(self.state, 0, news))
                news = self.apply(StepDecided(decision, now_us=0))
                launched = news[-1].step_plan.plan_id is not None
                num_steps += launched
                assert num_steps < max_steps, "the work does not end"
            assert self.state.in_flight, f"stuck: {self.state}"
            news += self.deliver()
        return num_steps

    def check_all_returned(self):
        """Nothing is left of what ended, and every block can be allocated."""
        state = self.state
        assert state.pool.num_free == state.limits.num_blocks
        assert len(state.rows) == state.limits.max_num_seqs
        assert not len(state.pool.shared)
        assert not len(state.by_request)
        assert set(self.endings) == set(self.owner)

    def check_outputs(self):
        """Every sequence's output is that of an unlimited pool, or the part of it that its abort or stop left."""
        for sequence_id, (request, child) in self.owner.items():
            tokens, reason = expected_output(request, child, self.state.limits.max_model_len)
            ended, count = self.endings[sequence_id]
            output = self.outputs[sequence_id][:count]
            if sequence_id in self.cut:
                assert (output, ended) == (tokens[:count], self.cut[sequence_id]), sequence_id
            else:
                assert (output, ended) == (tokens, reason), sequence_id
