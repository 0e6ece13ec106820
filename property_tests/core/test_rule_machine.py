"""Anything in any order, with shrinking: the engine under a Hypothesis rule machine."""

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nanofn.config import Limits
from nanofn.lab.shadow import EOS
from nanofn.lab.work import Work
from nanofn.policy import fcfs, prefill_first
from nanofn.request import Request, RequestId
from nanofn.state.decision import Decision
from nanofn.state.events import HintChanged, PrefixCacheReset, StopStringMatched

SMALL = st.integers(0, 7)
LIMITS = st.builds(
    lambda block_size, num_blocks, length, **rest: Limits(
        block_size, num_blocks, max_model_len=min(length, block_size * num_blocks + 1), **rest
    ),
    st.integers(1, 4),
    st.integers(2, 8),
    st.integers(2, 24),
    max_num_seqs=st.integers(1, 4),
    max_num_batched_tokens=st.integers(1, 9),
    enable_prefix_caching=st.booleans(),
)
FACTS = st.fixed_dictionaries(
    {
        "prompt_token_ids": st.lists(st.sampled_from([1, 2]), max_size=9).map(tuple),
        "max_tokens": st.integers(0, 8),
        "min_tokens": st.integers(0, 3),
        "n": st.integers(1, 3),
        "stop_token_ids": st.sampled_from([(), (EOS,)]),
        "cache_keys": st.sampled_from([(), (("salt", "a"),)]),
        "reads_prefix_cache": st.booleans(),
        "plans_ahead": st.booleans(),
    }
)


class Engine(RuleBasedStateMachine):
    """Every transition, on states that only transitions reach. `Work` checks all invariants after each rule."""

    @initialize(limits=LIMITS, depth=st.integers(1, 3))
    def start(self, limits, depth):
        self.work, self.depth, self.next_id = Work(limits), depth, 0

    def someone(self, place):
        """A live sequence, or now and then nobody."""
        live_ids = self.work.live_ids
        return live_ids[place % len(live_ids)] if live_ids and place < 7 else 1_000 + place

    @precondition(lambda self: len(self.work.live_ids) < 6)
    @rule(facts=FACTS)
    def arrive(self, facts):
        self.work.arrive(Request(RequestId(self.next_id), **facts))
        self.next_id += 1

    @rule(request_id=SMALL)
    def abort(self, request_id):
        self.work.abort(RequestId(request_id))

    @rule(place=SMALL, count=SMALL)
    def stop(self, place, count):
        self.work.apply(StopStringMatched(self.someone(place), count))

    @rule(place=SMALL, value=st.none() | SMALL)
    def hint(self, place, value):
        self.work.apply(HintChanged(self.someone(place), value))

    @precondition(lambda self: len(self.work.state.in_flight) < self.depth)
    @rule(
        grants=st.lists(st.tuples(SMALL, st.integers(-1, 9)), max_size=6),
        preempt=st.lists(SMALL, max_size=1),
        victims=st.none() | st.lists(SMALL, max_size=4),
        shed=st.just([]) | st.lists(SMALL, max_size=1),
        skip_blocked=st.booleans(),
    )
    def decide(self, grants, preempt, victims, shed, skip_blocked):
        decision = Decision(
            tuple([(self.someone(place), count) for place, count in grants]),
            preempt=tuple(map(self.someone, preempt)),
            victims=None if victims is None else tuple(map(self.someone, victims)),
            shed=tuple(map(self.someone, shed)),
            skip_blocked=skip_blocked,
        )
        self.work.step(decision)

    @precondition(lambda self: len(self.work.state.in_flight) < self.depth)
    @rule()
    def grant_all(self):
        self.work.step(Decision(tuple([(sequence_id, 9) for sequence_id in self.work.live_ids])))

    @precondition(lambda self: self.work.executor.results)
    @rule()
    def deliver(self):
        self.work.deliver()

    @precondition(lambda self: self.work.state.in_flight)
    @rule(place=SMALL)
    def fail(self, place):
        in_flight = self.work.state.in_flight
        self.work.fail(in_flight[place % len(in_flight)].plan_id)

    @rule(preempt_running=st.booleans())
    def reset(self, preempt_running):
        self.work.apply(PrefixCacheReset(preempt_running))

    @rule(policy=st.sampled_from([fcfs, prefill_first]))
    def finish_all(self, policy):
        self.work.drain(policy, depth=self.depth)
        self.work.check_all_returned()
        self.work.check_outputs()

    @invariant()
    def the_state_is_a_value(self):
        if hasattr(self, "work"):
            assert hash(self.work.state) is not None

    def teardown(self):
        if hasattr(self, "work"):
            self.finish_all(fcfs)


TestEngine = Engine.TestCase
TestEngine.settings = settings(stateful_step_count=40)
