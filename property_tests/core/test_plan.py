"""What a decision gets: order of work, trimming, blocks, victims, refusals."""

import pytest
from hypothesis import given, settings, strategies as st

from core.build import grants, limits, planned, refusals, request, work
from nanofn.lab.random_work import random_work
from nanofn.schedule.plan import plan
from nanofn.schedule.transition import transition
from nanofn.state.decision import Decision
from nanofn.state.effects import Finished, Preempted, Refused, Started
from nanofn.state.engine_state import initial_state
from nanofn.state.events import StepDecided


def test_an_empty_decision_launches_nothing() -> None:
    """The plan has no number, nothing is in flight, and only the count of steps moves."""
    state = work(request(0, 3)).state
    after, step_plan = plan(state, Decision())
    assert (step_plan.plan_id, len(step_plan.entries), after.in_flight) == (None, 0, ())
    assert after.next_plan_id == state.next_plan_id
    assert after.num_steps == state.num_steps + 1


def test_rows_are_given_out_from_the_first_on() -> None:
    """So that few sequences have small rows; a row that comes back is given out next."""
    run = work(*[request(number, 3) for number in range(5)])
    assert run.step(grants(0, 1, 2)).entries.row == (0, 1, 2)
    run.abort(1)
    assert run.step(grants(3, 4)).entries.row == (1, 3)


def test_every_step_counts_once() -> None:
    """Whether it starts, decodes, decodes again or does nothing; each launched plan has the next number."""
    run = work(request(0, 3), request(1, 3))
    plans = []
    for number in range(1, 6):
        plans.append(run.step(grants(0, 1)).plan_id)
        assert run.state.num_steps == number
        run.deliver()
    assert plans == [0, 1, 2, 3, 4]
    run.step(Decision())
    assert (run.state.num_steps, run.state.next_plan_id) == (6, 5)


@pytest.mark.parametrize("wish", [{"preempt": (0,)}, {"shed": (0,)}])
def test_steady_grants_do_not_hide_what_else_is_wished_for(wish) -> None:
    """All decode, and the grants are those of the step before: a preemption or shedding beside them happens."""
    run = work(request(0, 1), request(1, 1))
    for _ in range(3):
        run.step(grants((0, 1), (1, 1)))
        run.deliver()
    assert run.state.running.steady is not None
    step_plan = run.step(grants((0, 1), (1, 1), **wish))
    assert list(planned(step_plan)) == [1]
    assert run.state.running.sequence_id == (1,)


def test_tokens_are_trimmed_to_what_remains_and_to_the_budget() -> None:
    """A wish for more than is left gets what is left, in rank order."""
    run = work(request(0, 6), request(1, 6), request(2, 3), max_num_batched_tokens=10)
    step_plan = run.step(grants((1, 5), 0, 2))
    assert planned(step_plan) == {1: (0, 5), 0: (0, 5)}
    assert refusals(step_plan) == {2: "token_budget"}
    run.deliver()
    assert planned(run.step(grants(0, 1, 2))) == {0: (5, 1), 1: (5, 1), 2: (0, 3)}


def test_a_chunk_that_does_not_reach_the_last_token_samples_nothing() -> None:
    """Chunks of 16, 16 and 8 of a prompt of 40: one token, after the third."""
    run = work(request(0, 40), block_size=16)
    samples = []
    for _ in range(3):
        samples += run.step(grants((0, 16))).entries.samples
        run.deliver()
    assert samples == [False, False, True]
    assert len(run.outputs[0]) == 1


@pytest.mark.parametrize("prompt", [15, 16, 17])
def test_a_block_is_opened_by_the_token_that_is_written_into_it(prompt: int) -> None:
    """Blocks are just enough for what has been computed: 1, 1, 2 after prefill; 1, 2, 2 after the first decode."""
    run = work(request(0, prompt, max_tokens=3), block_size=16)
    run.step(grants(0))
    run.deliver()
    assert len(run.state.running[0].block_table) == {15: 1, 16: 1, 17: 2}[prompt]
    run.step(grants(0))
    assert len(run.state.running[0].block_table) == {15: 1, 16: 2, 17: 2}[prompt]


def test_new_blocks_are_the_changes_of_the_tables() -> None:
    """(row, place, block) for each block that a step adds, hits of a started sequence included."""
    run = work(request(0, 9))
    assert [place for _, place, _ in run.step(grants(0)).new_blocks] == [0, 1, 2]
    run.deliver()
    run.arrive(request(1, [*range(8), 100]))
    step_plan = run.step(grants(0, 1))
    row = run.state.running.get(1).row
    assert step_plan.effects == (Started(1, 8),)
    assert step_plan.new_blocks == tuple(
        [(row, place, block) for place, block in enumerate(run.state.running[1].block_table)]
    )
    assert tuple(run.state.running[1].block_table)[:2] == tuple(run.state.running[0].block_table)[:2]


def test_the_first_mention_counts() -> None:
    """A second grant is refused, and a first grant of 0 is a mention."""
    run = work(request(0, 6), request(1, 6))
    step_plan = run.step(grants((0, 2), (0, 4), (1, 0), (1, 3)))
    assert planned(step_plan) == {0: (0, 2)}
    assert [(each.sequence_id, each.refusal) for each in step_plan.effects if isinstance(each, Refused)] == [
        (0, "repeated"),
        (1, "repeated"),
    ]


def test_preempt_then_shed_then_grants() -> None:
    """What the first two free is there for the third, and a sequence preempted here is not granted here."""
    run = work(request(0, 8), request(1, 8), request(2, 12), num_blocks=4)
    run.step(grants(0, 1))
    run.deliver()
    step_plan = run.step(Decision(((2, 12), (0, 1)), preempt=(0,), shed=(1,)))
    assert planned(step_plan) == {2: (0, 12)}
    assert step_plan.effects[:2] == (Preempted(0, 8), Finished(1, "abort", None, 1))
    assert refusals(step_plan) == {0: "preempted"}
    assert not any(each.num_computed_tokens for each in run.state.waiting.values())


def test_what_is_not_there_is_refused_as_unknown() -> None:
    """Grants and shedding of the dead, preemption of the dead and of the waiting."""
    run = work(request(0, 3))
    step_plan = run.step(Decision(((7, 1), (0, 2)), preempt=(0, 8), shed=(9, 9)))
    assert [(each.sequence_id, each.refusal) for each in step_plan.effects if isinstance(each, Refused)] == [
        (0, "unknown"),
        (8, "unknown"),
        (9, "unknown"),
        (7, "unknown"),
    ]
    assert planned(step_plan) == {0: (0, 2)}


@pytest.mark.parametrize("wish", ["preempt", "shed"])
def test_what_is_wished_for_twice_is_refused_once(wish: str) -> None:
    """A wish about somebody unknown has one answer, however often it is uttered."""
    run = work(request(0, 3))
    step_plan = run.step(Decision(**{wish: (7, 8, 7)}))
    assert step_plan.effects == (Refused(7, "unknown"), Refused(8, "unknown"))


def test_decodes_keep_within_the_budget() -> None:
    """Three decode, a plan may compute two tokens: the third one in rank is refused."""
    run = work(*[request(number, 1) for number in range(3)], max_num_batched_tokens=2)
    run.step(grants((0, 1), (1, 1)))
    run.deliver()
    run.step(grants((2, 1)))
    run.deliver()
    for _ in range(2):
        step_plan = run.step(grants((0, 1), (1, 1), (2, 1)))
        assert list(planned(step_plan)) == [0, 1]
        assert refusals(step_plan) == {2: "token_budget"}
        run.deliver()


def test_shedding_one_child_leaves_its_siblings() -> None:
    """Abort takes all children of a request, shed only those it names."""
    run = work(request(0, 3, n=3))
    run.step(Decision(shed=(1,)))
    assert run.live_ids == (0, 2)
    assert run.endings == {1: ("abort", 0)}


def test_negative_grants_are_empty() -> None:
    """And harmless."""
    run = work(request(0, 3), request(1, 3))
    step_plan = run.step(grants((0, -1), 1))
    assert refusals(step_plan) == {0: "empty"}
    assert planned(step_plan) == {1: (0, 3)}


def test_rows_bound_the_running_sequences() -> None:
    """Six short prompts and two rows: two run."""
    run = work(*[request(number, 2) for number in range(6)], max_num_seqs=2)
    step_plan = run.step(grants(*range(6)))
    assert set(planned(step_plan)) == {0, 1}
    assert refusals(step_plan) == {2: "max_num_seqs", 3: "behind", 4: "behind", 5: "behind"}


def test_a_waiting_grant_that_does_not_fit_refuses_all_later_waiting_ones() -> None:
    """Unless the decision skips; running ones go on in either case."""
    run = work(request(0, 4), num_blocks=4, max_model_len=17)
    run.step(grants(0))
    run.deliver()
    run.arrive(request(1, 16))
    run.arrive(request(2, 4))
    step_plan = run.step(grants(1, 2, 0))
    assert refusals(step_plan) == {1: "blocks", 2: "behind"}
    assert planned(step_plan) == {0: (4, 1)}
    run.deliver()
    step_plan = run.step(grants(1, 2, 0, skip_blocked=True))
    assert refusals(step_plan) == {1: "blocks"}
    assert set(planned(step_plan)) == {2, 0}


def test_blocks_are_all_or_nothing() -> None:
    """A refused grant leaves no trace: its sequence, the pool and the index are as before."""
    run = work(request(0, 12), num_blocks=4)
    run.step(grants(0))
    run.deliver()
    run.arrive(request(1, [*range(8), 100, 101, 102, 103, 104]))
    before = run.state
    step_plan = run.step(grants(1))
    assert refusals(step_plan) == {1: "blocks"}
    assert (run.state.waiting, run.state.pool, run.state.prefix_index) == (
        before.waiting,
        before.pool,
        before.prefix_index,
    )


def full_pool(*, extra=0):
    """Three sequences of 4 tokens that fill a pool of three blocks of 4 exactly, each about to need another."""
    run = work(*[request(number, 4) for number in range(3)], num_blocks=3 + extra, max_model_len=13)
    run.step(grants(0, 1, 2))
    run.deliver()
    return run


def test_a_running_grant_takes_the_blocks_of_the_last_in_rank() -> None:
    """By default the reverse of the grants yields, and only as many as are needed."""
    run = full_pool()
    step_plan = run.step(grants(0, 1, 2))
    assert planned(step_plan) == {0: (4, 1)}
    assert step_plan.effects == (Preempted(2, 4), Refused(1, "blocks"), Refused(2, "preempted"))


def test_victims_yield_in_the_order_asked_for() -> None:
    """Also those that the grants do not mention."""
    run = full_pool()
    step_plan = run.step(grants(0, 2, victims=(1, 2)))
    assert step_plan.effects == (Preempted(1, 4), Refused(2, "blocks"))
    assert set(planned(step_plan)) == {0}


def test_nobody_ranked_before_yields() -> None:
    """The needy one that ranks last is refused, whoever is named as victim; the older ones keep their blocks."""
    run = full_pool()
    step_plan = run.step(grants((0, 0), (1, 0), 2, victims=(0, 1, 2)))
    assert step_plan.effects == (Refused(2, "blocks"),)
    assert len(run.state.running) == 3


def test_a_sequence_is_not_its_own_victim() -> None:
    """Alone at the end of the pool it is refused and keeps what it has."""
    run = full_pool()
    step_plan = run.step(grants(0, victims=(0,)))
    assert refusals(step_plan) == {0: "blocks"}
    assert len(run.state.running) == 3


def test_nobody_is_preempted_in_vain() -> None:
    """If all victims together do not suffice, none yields."""
    run = work(request(0, 16, max_tokens=1), request(1, 4), num_blocks=4, max_model_len=17)
    run.step(grants((0, 8), 1))
    run.deliver()
    run.arrive(request(2, 1))
    run.step(grants(2))
    run.deliver()
    # 0 lacks two blocks, and 2, the only one that may yield, has one.
    step_plan = run.step(grants((1, 0), 0, 2))
    assert step_plan.effects == (Refused(0, "blocks"),)
    assert planned(step_plan) == {2: (1, 1)}


def test_nobody_is_preempted_while_free_blocks_suffice() -> None:
    """Victims are looked at only when blocks run out."""
    run = full_pool(extra=1)
    step_plan = run.step(grants(0, victims=(1, 2)))
    assert step_plan.effects == ()


def test_a_decode_that_is_granted_nothing_gets_nothing() -> None:
    """Among others that are granted their token, first, in the middle and last."""
    for left_out in (0, 1, 2):
        run = work(*[request(number, 3) for number in range(3)])
        run.step(grants(0, 1, 2))
        run.deliver()
        wish = grants(*[(number, int(number != left_out)) for number in range(3)])
        assert planned(run.step(wish)) == {number: (3, 1) for number in range(3) if number != left_out}


def test_decodes_wait_for_their_last_result() -> None:
    """Granted together, again and again, with more plans in flight than tokens are left; the next result changes nothing."""
    run = work(request(0, 3, max_tokens=3), request(1, 3, max_tokens=4))
    run.step(grants(0, 1))
    run.deliver()
    for position in (3, 4):
        assert planned(run.step(grants((0, 1), (1, 1)))) == {0: (position, 1), 1: (position, 1)}
    assert planned(run.step(grants((0, 1), (1, 1)))) == {1: (5, 1)}
    assert planned(run.step(grants((0, 1), (1, 1)))) == {}


def test_of_three_victims_the_one_that_frees_nothing_stays() -> None:
    """Two blocks are missing; sequence 0 holds one that 1 holds as well, 2 and 3 have one each of their own."""
    prompts = ([5] * 9, [5] * 9, 3, 3, 9)
    run = work(*[request(*pair) for pair in enumerate(prompts)], num_blocks=5, max_model_len=20)
    run.step(grants((0, 4)))
    run.deliver()
    run.step(grants((1, 1), 2, 3, (4, 4)))
    run.deliver()
    assert run.state.pool.num_free == 0
    step_plan = run.step(grants(4, victims=(2, 0, 3)))
    assert [effect.sequence_id for effect in step_plan.effects if isinstance(effect, Preempted)] == [2, 3]
    assert planned(step_plan) == {4: (4, 5)}


def test_an_engine_that_has_seen_nothing_counts_from_nought() -> None:
    """Its first sequence, plan, row and step."""
    state = initial_state(limits())
    assert (state.next_sequence_id, state.next_plan_id, state.num_steps, state.rows[-1]) == (0, 0, 0, 0)


def test_a_victim_that_frees_nothing_is_passed_over() -> None:
    """All its blocks are shared, so its preemption would cost and not help."""
    run = work(request(0, 5, max_tokens=2), num_blocks=4, max_model_len=17)
    run.step(grants(0))
    run.deliver()
    run.arrive(request(1, [*range(4), 100]))
    run.arrive(request(2, 4))
    run.step(grants((1, 1), 2))
    run.deliver()
    # 0 and 1 share a block; 0 has one of its own, 1 one, 2 one: the pool is full, and 2 needs a block.
    assert run.state.pool.num_free == 0
    step_plan = run.step(grants(2, victims=(0, 1)))
    assert [effect.sequence_id for effect in step_plan.effects if isinstance(effect, Preempted)] == [0]
    run = work(request(0, 8), num_blocks=4, max_model_len=17)
    run.step(grants(0))
    run.deliver()
    run.arrive(request(1, [*range(8), 100]))
    run.step(grants((1, 1)))
    run.deliver()
    run.step(grants(1))  # 1 holds two shared blocks and one of its own
    run.deliver()
    run.arrive(request(2, 4))
    run.step(grants(2))
    run.deliver()
    assert run.state.pool.num_free == 0
    step_plan = run.step(grants(2, victims=(0, 1)))  # 0 holds shared blocks only
    assert [effect.sequence_id for effect in step_plan.effects if isinstance(effect, Preempted)] == [1]


def test_a_waiting_grant_never_preempts() -> None:
    """Not even with willing victims."""
    run = full_pool()
    run.arrive(request(3, 4))
    step_plan = run.step(grants(3, victims=(0, 1, 2)))
    assert refusals(step_plan) == {3: "blocks"}
    assert len(run.state.running) == 3


def test_requests_with_one_long_prefix_compute_it_once() -> None:
    """Those whose next block is being written wait for it and may be passed; then they hit it."""
    prompt = list(range(16))
    run = work(*[request(number, [*prompt, 100 + number]) for number in range(7)], request(8, 3), num_blocks=64)
    step_plan = run.step(grants(*range(8)))
    assert set(planned(step_plan)) == {0, 7}
    assert set(refusals(step_plan).values()) == {"pending_prefix"}
    step_plan = run.step(grants(*range(8)))  # still in flight
    assert set(planned(step_plan)) == {0, 7}
    run.deliver()
    step_plan = run.step(grants(*range(8)))
    assert planned(step_plan) == {0: (18, 1), 7: (4, 1)} | dict.fromkeys(range(1, 7), (16, 1))


def test_a_chunk_that_ends_inside_a_block_defers_as_well() -> None:
    """A block counts as being written from its first token."""
    run = work(request(0, 9), request(1, [*range(8), 100]))
    step_plan = run.step(grants((0, 2), 1))
    assert refusals(step_plan) == {1: "pending_prefix"}


def test_a_request_that_does_not_read_the_cache_does_not_wait_for_it() -> None:
    """It computes every position itself, at once."""
    run = work(request(0, 9), request(1, [*range(8), 100], reads_prefix_cache=False))
    assert planned(run.step(grants(0, 1))) == {0: (0, 9), 1: (0, 9)}


@pytest.mark.parametrize(("prompt", "hit"), [(47, 32), (48, 32), (49, 48)])
def test_the_last_known_token_is_always_computed(prompt: int, hit: int) -> None:
    """A fully cached prompt still computes its last block, because its last token's logits are needed."""
    run = work(request(0, 49, max_tokens=1), block_size=16)
    run.step(grants(0))
    run.deliver()
    run.arrive(request(1, range(prompt)))
    assert planned(run.step(grants(1))) == {1: (hit, prompt - hit)}


def test_an_ended_sequence_awaits_its_result() -> None:
    """Once a placeholder reaches the final length nothing more is planned: no step is wasted on ends by length."""
    run = work(request(0, 3, max_tokens=2))
    run.step(grants(0))
    run.step(grants(0))
    step_plan = run.step(grants(0))
    assert refusals(step_plan) == {0: "awaits_result"}
    run.deliver()
    run.deliver()
    assert run.endings == {0: ("length", 2)}
    assert run.executor.num_computed == 3 + 2 - 1


def test_a_preempted_sequence_waits_for_its_results() -> None:
    """While a plan in flight names it, it is not started again."""
    run = work(request(0, 3))
    run.step(grants(0))
    run.step(Decision(preempt=(0,)))
    assert refusals(run.step(grants(0))) == {0: "awaits_result"}
    run.deliver()
    assert planned(run.step(grants(0))) == {0: (0, 4)}


def test_a_running_sequence_may_be_left_out() -> None:
    """It keeps its blocks, and later computes its own next token."""
    run = work(request(0, 3), request(1, 3), request(2, 3))
    run.step(grants(0, 1, 2))
    run.deliver()
    for pair in ((0, 1), (1, 2), (2, 0)):
        run.step(grants(*pair))
        run.deliver()
    assert [each.num_output_tokens for each in run.state.running] == [3, 3, 3]


def test_rank_does_not_depend_on_who_was_admitted_first() -> None:
    """Entries come in the order of the grants."""
    run = work(request(0, 3), request(1, 3))
    run.step(grants(0, 1))
    run.deliver()
    assert run.step(grants(1, 0)).entries.sequence_id == (1, 0)


IDS = st.integers(0, 6)
DECISIONS = st.builds(
    Decision,
    grants=st.lists(st.tuples(IDS, st.integers(-2, 20)), max_size=8).map(tuple),
    preempt=st.lists(IDS, max_size=2).map(tuple),
    victims=st.none() | st.lists(IDS, max_size=5).map(tuple),
    shed=st.lists(IDS, max_size=2).map(tuple),
    skip_blocked=st.booleans(),
    wake_us=st.none() | st.integers(-5, 5),
)


@given(st.integers(0, 300), DECISIONS)
@settings(max_examples=150)
def test_a_decision_rewritten_to_what_it_got_is_a_fixed_point(seed: int, decision: Decision) -> None:
    """Grants with what they got, the refused ones with 0: the same plan, and nothing is refused."""
    work_done = random_work(seed % 40, checked=False)
    state = initial_state(work_done.state.limits)
    for event in work_done.log[: seed % (len(work_done.log) + 1)]:
        state, _ = transition(state, event)
    _, step_plan = plan(state, decision)
    got = dict(zip(step_plan.entries.sequence_id, step_plan.entries.num_tokens, strict=True))
    order = dict.fromkeys([sequence_id for sequence_id, _ in decision.grants])
    changed = [effect.sequence_id for effect in step_plan.effects if not isinstance(effect, Refused)]
    normal = Decision(
        tuple([(sequence_id, got.get(sequence_id, 0)) for sequence_id in order]),
        preempt=tuple([each for each in dict.fromkeys(decision.preempt) if each in state.running.sequence_id]),
        victims=decision.victims,
        shed=tuple([each for each in dict.fromkeys(decision.shed) if each in changed]),
        skip_blocked=decision.skip_blocked,
    )
    _, again = plan(state, normal)
    assert again.entries == step_plan.entries
    assert again.new_blocks == step_plan.new_blocks
    assert again.effects == tuple([effect for effect in step_plan.effects if not isinstance(effect, Refused)])


def test_steps_are_counted_also_when_they_are_empty() -> None:
    """`steps_since_output` counts calls of `plan`, so that a policy sees how long nothing came."""
    state = initial_state(limits())
    for _ in range(3):
        state, _ = transition(state, StepDecided(Decision(), now_us=0))
    assert state.num_steps == 3
