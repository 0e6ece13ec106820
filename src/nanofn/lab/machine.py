"""machine: the engine under a Hypothesis rule machine, anything in any order, with shrinking. Needs the extra `lab`.

A test of one's own policy is one line: `TestMine = machine_for(my_policy).TestCase`.
"""

from typing import Any

from attrs import evolve
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nanofn.config import Limits
from nanofn.lab.strategies import SMALL, limits, requests, wishes
from nanofn.lab.work import Work, require
from nanofn.policy import fcfs, prefill_first
from nanofn.request import Hint, Request, RequestId, SequenceId
from nanofn.schedule.view import view
from nanofn.state.decision import Decision, Policy
from nanofn.state.events import HintChanged, PrefixCacheReset, StepDecided, StopStringMatched

_NOBODY = 1_000


class EngineMachine(RuleBasedStateMachine):
    """Every transition, on states that only transitions reach. `Work` checks all invariants after each rule.

    Attributes:
        policy: Decides in between, wherever `decide_by_policy` is drawn. Its decisions may come after arbitrary ones.
        finishers: What brings everything to its end.
    """

    policy: Policy[Any] = fcfs
    finishers: tuple[Policy[Any], ...] = (fcfs, prefill_first)

    @initialize(given=limits(), depth=st.integers(1, 3))
    def start(self, given: Limits, depth: int) -> None:
        """Begin with an empty engine."""
        self.work, self.depth, self.next_id = Work(given), depth, 0
        self.policy_state: Any = self.policy.init

    def someone(self, place: int) -> SequenceId:
        """Name a live sequence, or now and then nobody."""
        live_ids = self.work.live_ids
        return live_ids[place % len(live_ids)] if live_ids and place < 7 else SequenceId(_NOBODY + place)

    def may_plan(self) -> bool:
        """Whether another plan may fly."""
        return len(self.work.state.in_flight) < self.depth

    @precondition(lambda self: len(self.work.live_ids) < 6)
    @rule(request=requests())
    def arrive(self, request: Request) -> None:
        """Let a request arrive."""
        self.work.arrive(evolve(request, request_id=RequestId(self.next_id)))
        self.next_id += 1

    @rule(request_id=SMALL)
    def abort(self, request_id: int) -> None:
        """Abort a request, alive or not."""
        self.work.abort(RequestId(request_id))

    @rule(place=SMALL, count=SMALL)
    def stop(self, place: int, count: int) -> None:
        """Find a stop string."""
        self.work.apply(StopStringMatched(self.someone(place), count))

    @rule(place=SMALL, value=st.none() | SMALL)
    def hint(self, place: int, value: Hint | None) -> None:
        """Change a hint."""
        self.work.apply(HintChanged(self.someone(place), value))

    @precondition(may_plan)
    @rule(wish=wishes())
    def decide(self, wish: dict[str, Any]) -> None:
        """Decide anything."""
        victims = wish["victims"]
        decision = Decision(
            tuple([(self.someone(place), count) for place, count in wish["grants"]]),
            preempt=tuple(map(self.someone, wish["preempt"])),
            victims=None if victims is None else tuple(map(self.someone, victims)),
            shed=tuple(map(self.someone, wish["shed"])),
            skip_blocked=wish["skip_blocked"],
        )
        self.work.step(decision)

    @precondition(may_plan)
    @rule()
    def grant_all(self) -> None:
        """Grant something to everybody."""
        self.work.step(Decision(tuple([(sequence_id, 9) for sequence_id in self.work.live_ids])))

    @precondition(may_plan)
    @rule()
    def decide_by_policy(self) -> None:
        """Let the policy decide, asked twice."""
        seen = view(self.work.state, 0, ())
        policy_state, decision = self.policy.decide(self.policy_state, seen)
        require((policy_state, decision) == self.policy.decide(self.policy_state, seen), "asked twice, it differs")
        require(hash((policy_state, decision)) is not None, "what it returns is immutable")
        self.policy_state = policy_state
        self.work.apply(StepDecided(decision, now_us=0))

    @precondition(lambda self: self.work.executor.results)
    @rule()
    def deliver(self) -> None:
        """Deliver the oldest result."""
        self.work.deliver()

    @precondition(lambda self: self.work.state.in_flight)
    @rule(place=SMALL)
    def fail(self, place: int) -> None:
        """Let a plan and all later ones fail."""
        plan_id = self.work.state.in_flight[place % len(self.work.state.in_flight)].plan_id
        assert plan_id is not None
        self.work.fail(plan_id)

    @rule(preempt_running=st.booleans())
    def reset(self, preempt_running: bool) -> None:
        """Reset the prefix cache."""
        self.work.apply(PrefixCacheReset(preempt_running))

    @rule(place=SMALL)
    def finish_all(self, place: int) -> None:
        """Let everything end, and look at what came out."""
        self.work.drain(self.finishers[place % len(self.finishers)], depth=self.depth)
        self.work.check_all_returned()
        self.work.check_outputs()

    @invariant()
    def the_state_is_a_value(self) -> None:
        """It can be hashed, down to its leaves."""
        if hasattr(self, "work"):
            require(hash(self.work.state) is not None, "the state is immutable")

    def teardown(self) -> None:
        """End as `finish_all` does."""
        if hasattr(self, "work"):
            self.finish_all(0)


def machine_for(policy: Policy[Any]) -> type[EngineMachine]:
    """Make the machine of a policy, which decides in between and must bring everything to its end."""
    return type("PolicyMachine", (EngineMachine,), {"policy": policy, "finishers": (policy,)})
