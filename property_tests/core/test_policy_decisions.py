"""What each built-in policy decides, grant by grant, in small states: that all ends well is stated elsewhere."""

from random import Random

import pytest
from attrs import evolve, frozen

from core.build import grants, request, work
from nanofn.policy import (
    by_key,
    fair,
    fcfs,
    guaranteed,
    leader,
    longest_prefix,
    patience,
    prefill_first,
    priority,
    quantum,
    shed_if,
    shortest_first,
    watermark,
)
from nanofn.policy.by_key import ByKey
from nanofn.policy.fair import Fair, Service
from nanofn.policy.fcfs import Fcfs
from nanofn.policy.guaranteed import most_blocks
from nanofn.policy.longest_prefix import LongestPrefix
from nanofn.policy.put_first import put_first
from nanofn.policy.quantum import Turns
from nanofn.policy.ranked import ranked
from nanofn.policy.shortest_first import expected_tokens_left
from nanofn.policy.waiting_index import WaitingIndex
from nanofn.policy.watermark import Watermark
from nanofn.schedule.view import view
from nanofn.state.decision import Decision
from nanofn.state.effects import Started
from nanofn.state.events import StopStringMatched
from nanofn.state.persistent import sorted_items


@frozen
class Always:
    """A policy with one decision."""

    decision: Decision
    init: int = 7

    def decide(self, policy_state, view):
        """Decide that, and count."""
        return policy_state + 1, self.decision


def decided(run, policy, now_us=0):
    """What a policy decides first in a run's state."""
    return policy.decide(policy.init, view(run.state, now_us))[1]


def decoding(count, *, prompt=3, **options):
    """A run with some sequences that have one output token each, and nothing in flight."""
    run = work(*[request(number, prompt) for number in range(count)], **options)
    run.step(grants(*range(count)))
    run.deliver()
    return run


# Around another policy.


def test_shed_if_sheds_whoever_is_hopeless_besides_what_the_policy_sheds() -> None:
    """Running and waiting alike; with nobody hopeless the decision is the policy's own."""
    run = decoding(2)
    run.arrive(request(7, 3))
    run.arrive(request(8, 3))
    inner = Decision(((0, 1),), shed=(1,))
    policy = shed_if(Always(inner), lambda each, seen: each.sequence_id in (0, 3) and seen.now_us > 5)
    assert policy.init == 7
    assert policy.decide(7, view(run.state, 6)) == (8, evolve(inner, shed=(1, 0, 3)))
    assert policy.decide(7, view(run.state, 5)) == (8, inner)


def test_leader_puts_the_oldest_first_wherever_it_is() -> None:
    """A preempted one before younger ones that run, a running one before those that wait; with nobody, nothing."""
    inner = Decision(((2, 1), (1, 1)), skip_blocked=True)
    run = decoding(3)
    run.step(Decision(preempt=(0,)))
    found = leader(Always(inner)).decide(7, view(run.state, 0))
    assert found == (8, Decision(((0, 1_000), (2, 1), (1, 1)), victims=(1, 2, 0)))
    run = decoding(2)
    run.arrive(request(2, 3))
    assert decided(run, leader(Always(inner))).grants == ((0, 1_000), (2, 1), (1, 1))
    assert leader(Always(inner)).init == 7
    assert decided(work(), leader(Always(inner))) == inner


def test_patience_puts_those_first_that_are_late_by_age() -> None:
    """A running and a waiting one after three steps; one that came later, and one with a new token, are in time."""
    run = work(request(0, 9), request(1, 9), request(2, 3), request(3, 3))
    run.step(grants((1, 4)))
    run.deliver()
    run.step(grants(2, (1, 1)))
    run.deliver()
    run.arrive(request(4, 3))
    inner = Decision(((2, 1),), preempt=(1, 2))
    assert patience(Always(inner), 2).init == 7
    assert patience(Always(inner), 3).decide(7, view(run.state, 0)) == (8, inner)
    late = ((0, 1_000), (1, 1_000), (3, 1_000))
    assert decided(run, patience(Always(inner), 2)) == Decision((*late, (2, 1)), victims=(2, 3, 1, 0), preempt=(2,))


def test_patience_looks_at_as_many_that_wait_as_there_are_rows() -> None:
    """With two rows the third that waits is not looked at."""
    run = work(*[request(number, 3) for number in range(4)], max_num_seqs=2)
    run.step(Decision())
    assert decided(run, patience(Always(Decision()), 1)).grants == ((0, 1_000), (1, 1_000))


def test_put_first_keeps_the_rest_of_a_decision() -> None:
    """The chosen rank first and yield last, are neither preempted nor shed; the others keep grants, order and fate."""
    run = decoding(5)
    run.arrive(request(5, 3))
    seen = view(run.state, 0)
    chosen = [seen.running.get(1), seen.waiting.get(5)]
    wish = Decision(((2, 1), (0, 7), (5, 9)), preempt=(1, 3), shed=(1, 2), skip_blocked=True, wake_us=9)
    ranks = ((1, 1_000), (5, 1_000), (2, 1), (0, 7))
    assert put_first(seen, wish, chosen) == Decision(
        ranks, preempt=(3,), victims=(0, 2, 4, 3, 5, 1), shed=(2,), wake_us=9
    )
    assert put_first(seen, evolve(wish, victims=(3, 1, 3, 9, 0)), chosen).victims == (3, 0, 4, 2, 5, 1)


def test_watermark_takes_back_the_starts_that_leave_too_little() -> None:
    """Two run and hold two of seven blocks; a third keeps one for each of three, a fourth would not."""
    run = decoding(2, num_blocks=7, max_model_len=20)
    for number in (2, 3, 4):
        run.arrive(request(number, 4))
    inner = Decision(((2, 4), (0, 1), (3, 4), (4, 4), (1, 1), (9, 1)), skip_blocked=True)
    kept = {count: decided(run, watermark(Always(inner), count)).grants for count in (0, 1, 2)}
    assert kept[0] == inner.grants
    assert kept[1] == ((2, 4), (0, 1), (1, 1), (9, 1))
    assert kept[2] == ((0, 1), (1, 1), (9, 1))
    assert watermark(Always(inner)) == watermark(Always(inner), 1) == Watermark(Always(inner))
    assert watermark(Always(inner)).init == 7
    found = watermark(Always(inner)).decide(7, view(run.state, 0))
    assert found == (8, evolve(inner, grants=kept[1]))


@pytest.mark.parametrize(("num_blocks", "num_granted"), [(3, 1), (4, 2)])
def test_watermark_may_be_used_up_to_the_last_block(num_blocks: int, num_granted: int) -> None:
    """One runs; a start takes one block, and one stays free for each: four in all."""
    run = decoding(1, num_blocks=num_blocks, max_model_len=12)
    run.arrive(request(1, 4))
    assert len(decided(run, watermark(Always(Decision(((0, 1), (1, 4)))))).grants) == num_granted


def test_watermark_closes_after_the_first_start_that_it_takes_back() -> None:
    """A shorter one behind it would fit, and waits all the same."""
    run = decoding(1, num_blocks=6, max_model_len=20)
    run.arrive(request(1, 14))
    run.arrive(request(2, 3))
    assert decided(run, watermark(Always(Decision(((0, 1), (1, 14), (2, 3)))))).grants == ((0, 1),)


def test_watermark_holds_after_a_start() -> None:
    """One runs and one starts; a long one behind them that would leave too little does not."""
    run = decoding(1, num_blocks=6, max_model_len=20)
    run.arrive(request(1, 3))
    run.arrive(request(2, 14))
    assert decided(run, watermark(Always(Decision(((0, 1), (1, 3), (2, 14)))))).grants == ((0, 1), (1, 3))


def test_watermark_lets_anything_start_where_nothing_runs() -> None:
    """One start, after which something runs."""
    run = work(request(0, 12), request(1, 4), num_blocks=4)
    assert decided(run, watermark(Always(Decision(((0, 12), (1, 4)))), 3)).grants == ((0, 12),)


def test_watermark_lets_those_that_run_go_on_if_nothing_else_is_left() -> None:
    """A policy that would only start others, and a grant of no tokens is nothing."""
    run = decoding(2, num_blocks=4, max_model_len=12)
    run.arrive(request(2, 4))
    assert decided(run, watermark(Always(Decision(((2, 4), (0, 0)))))).grants == ((0, 1), (1, 1))
    assert decided(run, watermark(Always(Decision(((2, 4), (0, 0), (1, 1)))))).grants == ((0, 0), (1, 1))


def turn(run, *, starts=(), num_tokens=2, inner=None):
    """What `quantum` decides when turns began as stated."""
    policy = quantum(Always(inner or Decision(((0, 1), (1, 1), (2, 1)))), num_tokens)
    assert policy.init == Turns(7)
    return policy.decide(Turns(7, starts), view(run.state, 0))


def grown(num_steps):
    """Three run and have one output token and some more; three wait, the second of which has one."""
    run = decoding(4)
    run.step(Decision(preempt=(3,)))
    for number in (4, 5):
        run.arrive(request(number, 3))
    for _ in range(num_steps):
        run.step(grants((0, 1), (1, 1), (2, 1)))
        run.deliver()
    return run


def test_quantum_ends_a_turn_after_its_tokens_and_starts_the_least_served() -> None:
    """Turns of two tokens: two that had them yield to the two without output, one that had one goes on."""
    run = grown(2)
    state, decision = turn(run, starts=((0, 1), (1, 2), (2, 0), (9, 0)))
    assert decision == Decision(((4, 1_000), (5, 1_000), (0, 1), (1, 1), (2, 1)), preempt=(0, 2))
    assert state == Turns(8, ((1, 2),))


def test_quantum_notes_when_a_turn_began() -> None:
    """One that was not known before begins now; with nobody waiting no turn ends."""
    run = grown(1)
    inner = Decision(((0, 1),), preempt=(1,))
    assert turn(run, inner=inner) == (Turns(8, ((0, 2), (1, 2), (2, 2))), inner)
    for number in (3, 4, 5):
        run.abort(number)
    assert turn(run, starts=((0, 0), (1, 0))) == (
        Turns(8, ((0, 0), (1, 0), (2, 2))),
        Decision(((0, 1), (1, 1), (2, 1))),
    )


def test_quantum_has_an_heir_for_each_turn_it_ends() -> None:
    """Three turns are over and one waits: the first of them yields, besides whom the policy preempts."""
    run = grown(2)
    run.abort(4)
    run.abort(5)
    state, decision = turn(run, starts=((0, 0), (1, 0), (2, 0)), inner=Decision(preempt=(2,)))
    assert decision == Decision(((3, 1_000),), preempt=(2, 0))
    assert state == Turns(8, ((1, 0), (2, 0)))


def test_quantum_waits_for_results_and_for_heirs_in_flight() -> None:
    """Who awaits a result keeps its turn; who was preempted while a plan names it cannot start yet."""
    run = grown(2)
    run.step(grants((0, 1)))
    state, _ = turn(run, starts=((0, 0), (1, 0), (2, 0)))
    assert [key for key, _ in state.starts] == [0]
    run = decoding(2)
    run.step(grants((0, 1), (1, 1)))
    run.step(Decision(preempt=(1,)))
    run.deliver()
    run.step(grants((0, 1)))
    run.deliver()
    assert turn(run, starts=((0, 0),), num_tokens=3)[1].preempt == (0,)
    run.step(grants((1, 1)))
    run.step(Decision(preempt=(1,)))
    assert turn(run, starts=((0, 0),), num_tokens=3)[1].preempt == ()


# With an order of their own.


def test_shortest_first_expects_what_the_hint_says() -> None:
    """Prompt and output still to come; the hint where it is a number, else the most that was asked for."""
    run = decoding(1, prompt=5)
    seen = view(run.state, 0).running[0]
    assert expected_tokens_left(seen) == 5 + 8 - 5
    for hint, left in ((3, 3), (2.5, 2.5), (0, 1), ((1, 2), 8)):
        sequence = evolve(seen.sequence, hint=hint)
        assert expected_tokens_left(evolve(seen, sequence=sequence)) == left


def test_shortest_first_passes_over_what_does_not_fit() -> None:
    """Rank by expected work; the second one does not fit and the third starts, as the core is told as well."""
    run = decoding(1, prompt=9, num_blocks=8, max_model_len=30)
    run.arrive(request(1, 20, max_tokens=1))
    run.arrive(request(2, 2, max_tokens=30))
    decision = decided(run, shortest_first)
    assert decision == Decision(((0, 1), (2, 2)), victims=(0,), skip_blocked=True)


def test_by_key_orders_grants_and_victims() -> None:
    """By key and then by age, those that run and those that wait in one order; the last in rank yields first."""
    key = {0: 2, 1: 1, 2: 1, 3: 0, 4: 2, 5: 1}
    run = decoding(3)
    for number in (3, 4, 5):
        run.arrive(request(number, 3))
    for is_fixed in (False, True):
        policy = by_key(lambda each: key[each.sequence_id], is_fixed=is_fixed)
        state, decision = policy.decide(policy.init, view(run.state, 0))
        assert decision == Decision(((3, 3), (1, 1), (2, 1), (5, 3), (0, 1), (4, 3)), victims=(0, 2, 1))
        assert list(state.order.values()) == ([3, 5, 4] if is_fixed else [])


def test_by_key_keeps_the_watermark_it_is_given() -> None:
    """As `priority` and `shortest_first` do with one block: two that run keep two, the third needs its own and one more."""
    run = decoding(2, num_blocks=5, max_model_len=20)
    run.arrive(request(2, 4))
    assert [len(decided(run, by_key(lambda _: 0, watermark=count)).grants) for count in (0, 1)] == [3, 2]
    assert decided(run, by_key(lambda _: 0)) == decided(run, priority)
    assert len(decided(run, priority).grants) == 2
    run.abort(1)
    assert len(decided(run, priority).grants) == 2


def test_by_key_tells_the_core_whether_it_skips() -> None:
    """As it is asked to, and not by itself."""
    run = decoding(1, prompt=9, num_blocks=8, max_model_len=30)
    run.arrive(request(1, 20))
    run.arrive(request(2, 2))
    assert decided(run, by_key(key_of, skip_blocked=True)) == Decision(
        ((0, 1), (2, 2)), victims=(0,), skip_blocked=True
    )
    assert decided(run, by_key(key_of)) == Decision(((0, 1),), victims=(0,))
    assert by_key(key_of) == ByKey(key_of) == ByKey(key_of, is_fixed=False, watermark=1, skip_blocked=False)


def key_of(each):
    """Everybody is as good as everybody else."""
    return each.n


def test_longest_prefix_starts_whoever_finds_most() -> None:
    """Within the horizon; of two that find as much the older one."""
    run = work(request(0, [5] * 9, 1))
    run.step(grants(0))
    run.deliver()
    for number, prompt in enumerate(([6] * 9, [7] * 9, [5] * 5 + [8] * 4, [5] * 9), 1):
        run.arrive(request(number, prompt))
    assert longest_prefix == LongestPrefix(128, 1)
    assert [key for key, _ in decided(run, longest_prefix).grants] == [4, 3, 1, 2]
    assert [key for key, _ in decided(run, LongestPrefix(horizon=3)).grants] == [3, 1, 2]
    assert decided(run, longest_prefix).grants[0] == (4, 1)


def test_longest_prefix_decodes_before_it_starts_anybody_and_keeps_its_watermark() -> None:
    """One that runs comes first, and another starts only if a block stays free for each."""
    run = decoding(1, num_blocks=3, max_model_len=12)
    run.arrive(request(1, 4))
    assert decided(run, longest_prefix).grants == ((0, 1),)
    assert decided(run, LongestPrefix(watermark=0)).grants == ((0, 1), (1, 4))


def test_guaranteed_sets_a_sequences_greatest_length_aside() -> None:
    """Its last token is never an input, and no sequence outgrows the model."""
    run = work(request(0, 4, max_tokens=5), request(1, 4, max_tokens=6), request(2, 9, max_tokens=50), max_model_len=18)
    seen = view(run.state, 0)
    assert [most_blocks(each, seen) for each in seen.waiting] == [2, 3, 5]


def test_guaranteed_starts_in_order_as_long_as_the_greatest_lengths_fit() -> None:
    """Of seven blocks three are set aside for one that runs, three for the next; the last one would need two."""
    run = work(request(0, 4, max_tokens=6), num_blocks=7, max_model_len=20)
    run.step(grants(0))
    run.deliver()
    for number, most in ((1, 6), (2, 2), (3, 1)):
        run.arrive(request(number, 4, max_tokens=most))
    assert decided(run, guaranteed) == Decision(((0, 1), (1, 4)))
    run.abort(2)
    assert decided(run, guaranteed) == Decision(((0, 1), (1, 4), (3, 4)))


def test_guaranteed_counts_rows() -> None:
    """With three rows, one taken, two start."""
    run = decoding(1, max_num_seqs=3)
    for number in (1, 2, 3):
        run.arrive(request(number, 3, max_tokens=1))
    assert decided(run, guaranteed).grants == ((0, 1), (1, 3), (2, 3))


def test_guaranteed_gives_out_the_memo_of_a_steady_step_if_the_budget_allows() -> None:
    """With three decodes and a budget of three; with two only two are granted."""
    run = decoding(3, max_num_batched_tokens=9)
    run.step(grants((0, 1), (1, 1), (2, 1)))
    run.deliver()
    assert decided(run, guaranteed).grants is view(run.state, 0).running.decodes
    for budget, granted in ((3, 3), (2, 2)):
        state = evolve(run.state, limits=evolve(run.state.limits, max_num_batched_tokens=budget))
        wish = guaranteed.decide(None, view(state, 0))[1].grants
        assert len(wish) == granted
        assert (wish is view(state, 0).running.decodes) == (budget == 3)


def test_prefill_first_prefills_and_keeps_the_decodes_rank() -> None:
    """The rest of a started prompt, then whoever waits; decodes get nothing in such a step and one token in others."""
    run = work(
        *[request(number, length) for number, length in enumerate((3, 9, 4, 5, 5))],
        num_blocks=64,
        max_num_batched_tokens=12,
    )
    run.step(grants(0, (1, 4)))
    run.deliver()
    assert decided(run, prefill_first) == Decision(((1, 5), (2, 4), (3, 3), (0, 0)))
    run.step(grants(1))
    run.deliver()
    for number in (2, 3, 4):
        run.abort(number)
    assert decided(run, prefill_first) == Decision(((0, 1), (1, 1)))


def test_two_tokens_left_are_a_prefill_for_fcfs_prefill_first_and_ranked() -> None:
    """They go before or after the decodes, not among them."""
    run = work(request(0, 3), request(1, 6))
    run.step(grants(0, (1, 4)))
    run.deliver()
    assert decided(run, prefill_first).grants == ((1, 2), (0, 0))
    assert decided(run, fcfs).grants == ((0, 1), (1, 2))
    assert Fcfs() == fcfs == Fcfs(watermark=1)


def test_prefill_first_shares_the_budget_among_those_it_prefills() -> None:
    """Two started prompts of 5 and 9 tokens left; decodes beyond a budget keep their rank only."""
    run = work(request(0, 9), request(1, 13), num_blocks=64, max_num_batched_tokens=8)
    run.step(grants((0, 4), (1, 4)))
    run.deliver()
    assert decided(run, prefill_first).grants == ((0, 5), (1, 3))
    run = work(request(0, 9), request(1, 6), request(2, 5), num_blocks=64, max_num_batched_tokens=9)
    run.step(grants((0, 4), (1, 4)))
    run.deliver()
    assert decided(run, prefill_first).grants == ((0, 5), (1, 2), (2, 2))
    run = decoding(3)
    state = evolve(run.state, limits=evolve(run.state.limits, num_blocks=64, max_num_batched_tokens=2))
    assert prefill_first.decide(None, view(state, 0))[1].grants == ((0, 1), (1, 1), (2, 0))
    run = work(
        *[request(number, length) for number, length in enumerate((3, 4, 5, 6))],
        num_blocks=64,
        max_num_batched_tokens=12,
    )
    assert decided(run, prefill_first).grants == ((0, 3), (1, 4), (2, 5))


@pytest.mark.parametrize(("num_blocks", "num_started"), [(8, 2), (7, 2), (6, 1), (5, 1), (4, 0)])
def test_prefill_first_counts_blocks(num_blocks: int, num_started: int) -> None:
    """A prompt that has started and lacks a block, then prompts of two blocks each; three are taken."""
    run = work(request(0, 8), request(1, 4), num_blocks=num_blocks, max_model_len=16)
    run.step(grants((0, 4), (1, 4)))
    run.deliver()
    for number in (2, 3):
        run.arrive(request(number, 5))
    started = [key for key, count in decided(run, prefill_first).grants if key in (2, 3)]
    assert len(started) == num_started


def test_prefill_first_counts_rows() -> None:
    """With three rows, one taken, two start."""
    run = decoding(1, max_num_seqs=3)
    for number in (1, 2, 3):
        run.arrive(request(number, 3))
    assert decided(run, prefill_first).grants == ((1, 3), (2, 3), (0, 0))


def test_quantum_looks_at_the_first_128_that_wait() -> None:
    """A less served one behind them has to wait for its turn; the last of them has not."""
    run = work(request(0, 1), request(1, 1, n=128), request(2, 1), num_blocks=300, max_num_seqs=140, max_model_len=20)
    run.step(grants(*range(129)))
    run.deliver()
    run.step(Decision(preempt=tuple(range(1, 129))))
    assert turn(run, starts=((0, 0),), num_tokens=1)[1].grants[0] == (1, 1_000)
    run.apply(StopStringMatched(5, 1))
    assert turn(run, starts=((0, 0),), num_tokens=1)[1].grants[0] == (129, 1_000)


@pytest.mark.parametrize("policy", [fcfs, prefill_first, priority], ids=["fcfs", "prefill_first", "priority"])
def test_who_shares_a_prefix_waits_for_it_and_others_pass(policy) -> None:
    """While it is about to be computed in this step, is computed in part, or is in flight; then it is a hit."""
    shared = [5] * 9
    run = work(request(0, shared), request(1, [5] * 8 + [6] * 3), request(2, 5))
    assert decided(run, policy).grants == ((0, 9), (2, 5))
    run.step(grants((0, 2)))
    run.deliver()
    assert sorted(decided(run, policy).grants) == [(0, 7), (2, 5)]
    run.step(grants(0))
    assert [grant for grant in decided(run, policy).grants if grant[0]] == [(2, 5)]
    run.deliver()
    assert (1, 3) in decided(run, policy).grants


@pytest.mark.parametrize("policy", [fcfs, prefill_first], ids=["fcfs", "prefill_first"])
def test_nobody_passes_one_that_a_plan_in_flight_names(policy) -> None:
    """A preempted sequence at the head of the queue cannot start before its plan is committed, and keeps its turn."""
    run = work(request(0, 3), request(1, 3))
    run.step(grants(0))
    run.step(Decision(preempt=(0,)))
    assert decided(run, policy).grants == ()


def test_fcfs_decodes_up_to_the_budget_and_keeps_the_rank_of_the_rest() -> None:
    """Three decodes and a budget of two; none is left for one that waits."""
    run = decoding(3)
    run.arrive(request(3, 3))
    state = evolve(run.state, limits=evolve(run.state.limits, max_num_batched_tokens=2))
    assert fcfs.decide(None, view(state, 0)) == (None, Decision(((0, 1), (1, 1), (2, 0))))
    state = evolve(run.state, limits=evolve(run.state.limits, max_num_batched_tokens=3))
    assert fcfs.decide(None, view(state, 0)) == (None, Decision(((0, 1), (1, 1), (2, 1))))


def test_fcfs_spends_the_rest_of_the_budget_in_order() -> None:
    """A decode, two started prompts, then those that wait, until nothing is left."""
    run = work(
        *[request(number, length) for number, length in enumerate((3, 9, 6, 2, 5, 5))],
        num_blocks=64,
        max_num_batched_tokens=15,
    )
    run.step(grants(0, (1, 4), (2, 4)))
    run.deliver()
    assert decided(run, fcfs).grants == ((0, 1), (1, 5), (2, 2), (3, 2), (4, 5))


def test_fcfs_counts_rows() -> None:
    """With three rows, one taken, two start."""
    run = decoding(1, max_num_seqs=3)
    for number in (1, 2, 3):
        run.arrive(request(number, 3))
    assert decided(run, fcfs).grants == ((0, 1), (1, 3), (2, 3))


@pytest.mark.parametrize(("left", "count"), [(2, 0), (4, 1), (2, 1), (4, 2)])
@pytest.mark.parametrize("num_blocks", range(5, 16))
def test_fcfs_and_ranked_keep_a_watermark(num_blocks: int, left: int, count: int) -> None:
    """Two run with a block each, one of them with a block of its prompt to come; starts need a block and the watermark."""
    run = work(request(0, 3), request(1, 4 + left), num_blocks=num_blocks, max_model_len=20)
    run.step(grants(0, (1, 4)))
    run.deliver()
    for number in (2, 3, 4):
        run.arrive(request(number, 4))
    num_spare = num_blocks - 3 - 2 * count
    expected = ((0, 1), (1, left), *[(key, 4) for key in (2, 3, 4)][: max(num_spare // (1 + count), 0)])
    assert decided(run, Fcfs(watermark=count)).grants == expected
    seen = view(run.state, 0)
    assert ranked(seen, (*seen.running, *seen.waiting), watermark=count) == expected


def test_a_decode_takes_its_next_block_from_its_watermark() -> None:
    """One that is about to open a block holds nobody up for it, under `fcfs` and in `ranked`."""
    run = decoding(1, prompt=4, num_blocks=4, max_model_len=13)
    run.arrive(request(1, 4))
    assert decided(run, fcfs).grants == decided(run, priority).grants == ((0, 1), (1, 4))


def test_fcfs_and_ranked_start_anything_where_nothing_runs() -> None:
    """A prompt that leaves no watermark; the one behind it waits, since then something runs."""
    run = work(request(0, 15), request(1, 3), num_blocks=4, max_model_len=16)
    seen = view(run.state, 0)
    assert decided(run, fcfs).grants == ranked(seen, seen.waiting, watermark=1) == ((0, 15),)


def test_ranked_leaves_a_token_to_each_decode_behind_a_prefill() -> None:
    """A prompt ahead of two decodes gets all but two tokens; a decode ahead of it needs none left."""
    run = decoding(2)
    run.arrive(request(2, 20))
    state = evolve(run.state, limits=evolve(run.state.limits, max_num_batched_tokens=9))
    seen = view(state, 0)
    (zero, one), (two,) = seen.running, seen.waiting
    assert ranked(seen, (two, zero, one)) == ((2, 7), (0, 1), (1, 1))
    assert ranked(seen, (zero, two, one)) == ((0, 1), (2, 7), (1, 1))
    assert ranked(seen, (zero, one, two)) == ((0, 1), (1, 1), (2, 7))
    seen = view(evolve(run.state, limits=evolve(run.state.limits, max_num_batched_tokens=2)), 0)
    assert ranked(seen, (zero, one, two)) == ((0, 1), (1, 1))
    state = decoding(3).state
    seen = view(evolve(state, limits=evolve(state.limits, max_num_batched_tokens=2)), 0)
    assert ranked(seen, seen.running) == ((0, 1), (1, 1))


def test_ranked_skips_what_does_not_fit_only_if_asked() -> None:
    """One too long, one that a plan in flight names, and rows that are all taken end the admission otherwise."""
    run = decoding(1, num_blocks=6, max_model_len=20)
    run.arrive(request(1, 18))
    run.arrive(request(2, 3))
    seen = view(run.state, 0)
    order = (*seen.running, *seen.waiting)
    assert ranked(seen, order, watermark=1) == ((0, 1),)
    assert ranked(seen, order, watermark=1, skip_blocked=True) == ((0, 1), (2, 3))
    run = work(request(0, 3), request(1, 3))
    run.step(grants(0))
    run.step(Decision(preempt=(0,)))
    seen = view(run.state, 0)
    assert ranked(seen, seen.waiting) == ()
    assert ranked(seen, seen.waiting, skip_blocked=True) == ((1, 3),)
    run = decoding(2, max_num_seqs=3)
    for number in (2, 3):
        run.arrive(request(number, 3))
    seen = view(run.state, 0)
    assert ranked(seen, (*seen.waiting, *seen.running), skip_blocked=True) == ((2, 3), (0, 1), (1, 1))


# Fair, and the index of those that wait.


def charged(*clients, weights=(1, 2), **options):
    """A run of one request a client with prompts of nine tokens, one of which is cached; and what each was charged."""
    policy = Fair(*weights)
    run = work(request(90, [5] * 9, 1), **options)
    run.step(grants(0))
    run.deliver()
    news = ()
    for number, client in enumerate(clients):
        news += run.arrive(request(number, [5] * 9 if number == 0 else 9, client=client))
    service, _ = policy.decide(policy.init, view(run.state, 0, news))
    news = run.step(grants(*range(1, 1 + len(clients)))).effects
    news += run.deliver()
    service, _ = policy.decide(service, view(run.state, 0, news))
    return run, policy, service


def received(service, *clients):
    """What some clients have got."""
    return [service.received.get(client) for client in clients]


def test_fair_charges_computed_prompt_tokens_at_the_start_and_output_tokens_at_the_result() -> None:
    """Eight of nine tokens were found in the cache: 1 and 2 for one output, 9 and 2 for the others."""
    _, _, service = charged("a", "b", "b")
    assert received(service, "a", "b", "c") == [3, 22, None]
    _, _, service = charged("a", "b", "b", weights=(3, 5))
    assert received(service, "a", "b") == [8, 64]
    assert (fair.prompt_weight, fair.output_weight) == (1, 2)


def test_fair_forgets_whom_a_sequence_belonged_to_when_it_ends() -> None:
    """Its last token is charged still, if both are told of at once."""
    run, policy, service = charged("a", "b")
    assert {key for key, _ in sorted_items(service.clients)} == {1, 2}
    news = run.step(grants((1, 1))).effects + run.deliver() + run.abort(0)
    service, _ = policy.decide(service, view(run.state, 0, news))
    assert received(service, "a") == [5]
    assert {key for key, _ in sorted_items(service.clients)} == {2}


def test_fair_serves_the_client_first_that_has_got_least() -> None:
    """As if each start were charged for its prompt; of equals the first name, within a client the oldest."""
    run, policy, service = charged("a", "b", num_blocks=64)
    news = ()
    for number, (client, length) in enumerate((("b", 3), ("a", 4), ("a", 4), ("a", 4), ("b", 3), ("a", 1)), 10):
        news += run.arrive(request(number, length, client=client))
    service, decision = policy.decide(service, view(run.state, 0, news))
    assert [key for key, _ in decision.grants] == [1, 2, 4, 5, 6, 3, 7, 8]
    assert service.floor == 3


def test_fair_charges_nothing_where_more_was_cached_than_the_prompt() -> None:
    """A sequence that starts again may find its own output tokens too."""
    run = decoding(1)
    service, _ = fair.decide(fair.init, view(run.state, 0, (Started(0, 8),)))
    assert service.received.get(run.state.running[0].request.client) == 0


def test_fair_counts_a_start_by_its_weight() -> None:
    """A prompt of three tokens at three each is more than the five that the other client has got."""
    run = work(request(0, 3, client="a"), request(1, 3, client="a"), request(2, 3, client="b"))
    service = Service(received=Service().received.set("b", 5))
    _, decision = Fair(3, 1).decide(service, view(run.state, 0))
    assert [key for key, _ in decision.grants] == [0, 2, 1]


def test_fair_serves_the_very_first_of_a_client_without_a_name() -> None:
    """Sequence 0 of client "", alone and before others."""
    run = work(request(0, 3, client=""))
    assert decided(run, fair).grants == ((0, 3),)
    run.arrive(request(1, 3, client=""))
    run.arrive(request(2, 3, client="a"))
    assert decided(run, fair).grants == ((0, 3), (2, 3), (1, 3))


def test_fair_gives_no_credit_for_having_been_away() -> None:
    """A client that comes back starts from the least charge of those that had work."""
    run, policy, service = charged("a", "b")
    service = evolve(service, received=service.received.set("c", 1), floor=6)
    news = run.arrive(request(20, 3, client="c")) + run.arrive(request(21, 3, client="a"))
    service, decision = policy.decide(service, view(run.state, 0, news))
    assert service.floor == 6
    assert [key for key, _ in decision.grants][2:] == [4, 3]
    news = run.step(grants(3)).effects
    service, _ = policy.decide(service, view(run.state, 0, news))
    assert received(service, "a", "c") == [3, 9]


def test_fair_keeps_its_watermark_and_looks_at_as_many_as_there_are_rows() -> None:
    """One block stays free for each that runs."""
    run = decoding(1, num_blocks=3, max_model_len=12)
    run.arrive(request(1, 4))
    assert decided(run, fair).grants == ((0, 1),)
    run = decoding(1, num_blocks=4, max_model_len=12)
    run.arrive(request(1, 4))
    assert decided(run, fair).grants == ((0, 1), (1, 4))
    run = work(*[request(number, 3) for number in range(4)], max_num_seqs=2)
    service, decision = fair.decide(fair.init, view(run.state, 0))
    assert decision.grants == ((0, 3), (1, 3))
    assert list(service.waiting.order.values()) == [0, 1, 2, 3]


def test_a_waiting_index_looks_at_what_changed_and_at_all_only_if_that_is_much() -> None:
    """Twice at each of up to 64; beyond that, and without the news, at everybody."""
    looks = []

    def rank(each):
        looks.append(each)
        return 0, each.sequence_id

    run = work(request(0, 1, n=300))
    index = WaitingIndex().updated(view(run.state, 0), rank)
    assert len(looks) == 300
    for count in (1, 64, 65):
        looks.clear()
        news = run.arrive(request(count, 1, n=count))
        index = index.updated(view(run.state, 0, news), rank)
        assert len(looks) == 2 * min(count, 64) + (430 if count == 65 else 0)
    run.step(grants(3))
    looks.clear()
    news = run.arrive(request(1_000, 1)) + run.step(Decision(preempt=(3,))).effects + run.abort(1)
    assert len(index.updated(view(run.state, 0, news), rank).order) == 430
    assert len(looks) == 4


def test_priority_keeps_an_index_of_those_that_wait() -> None:
    """A step looks at what changed, not at all that wait; `shortest_first` has keys that change and keeps none."""
    run = work(request(0, 3), request(1, 3))
    assert list(priority.decide(priority.init, view(run.state, 0))[0].order.values()) == [0, 1]
    assert shortest_first.decide(shortest_first.init, view(run.state, 0))[0] == WaitingIndex()


@pytest.mark.parametrize("num_changes", [1, 20, 70])
def test_a_waiting_index_follows_the_news(num_changes: int) -> None:
    """However many changes there are, it is the index built anew; without its news it is built anew as well."""
    random = Random(num_changes)
    run = work(num_blocks=500, max_num_seqs=300, max_num_batched_tokens=10_000, max_model_len=40)

    def rank(each):
        return -each.priority, each.sequence_id

    def updated(index, news):
        seen = view(run.state, 0, news)
        after = index.updated(seen, rank)
        expected = sorted([(rank(each), each.sequence_id) for each in seen.waiting])
        assert list(after.order) == expected
        assert list(sorted_items(after.ranks)) == sorted([(number, each) for each, number in expected])
        assert [each.sequence_id for each in after.sequences(seen)] == [number for _, number in expected]
        return after

    news = run.arrive(request(0, 3, priority=3)) + run.arrive(request(1, 3, priority=4))
    index = updated(WaitingIndex(), news)
    news = ()
    for number in range(2, 2 + num_changes):
        news += run.arrive(request(number, 3, priority=random.randint(0, 9)))
    index = updated(index, news)
    news = run.step(grants(*range(num_changes))).effects + run.deliver()
    index = updated(index, news)
    news = run.step(Decision(preempt=tuple(range(0, num_changes, 2)))).effects + run.abort(num_changes)
    updated(updated(index, news), ())
    updated(WaitingIndex(), ())
