"""Each check of `violations` and `step_violations` finds the fault it is for, planted into a state that has none.

That no fault ever occurs is what random works, the rule machine and the explorer state: they run the checks after every
transition. Here the checks themselves are tested: one that looked away would make all of those tests say nothing.
"""

import pytest
from attrs import evolve

from core.build import grants, request, work
from nanofn.lab.shadow import ShadowExecutor, ShadowMismatchError
from nanofn.state.effects import Finished, Rejected, TokensCommitted
from nanofn.state.events import Launched, RequestAborted, RequestArrived
from nanofn.state.invariants import violations
from nanofn.state.running import Running, transposed
from nanofn.state.step_invariants import step_violations


def busy():
    """Two running sequences share two blocks of three and are decoding, one waits, one has ended and left a block."""
    run = work(request(2, 5, 1), num_blocks=12, max_num_seqs=4, max_model_len=20)
    run.step(grants(0))
    run.deliver()
    run.arrive(request(0, range(9)))
    run.step(grants(1))
    run.deliver()
    run.arrive(request(1, [*range(8), 100], n=2))
    run.step(grants(1, 2))
    run.deliver()
    run.step(grants((1, 1), (2, 1)))
    assert not violations(run.state)
    return run


def found(state):
    """Ids of what is wrong with a state."""
    return {finding.invariant for finding in violations(state)}


def changed(state, place, **facts):
    """The state with one running sequence changed and nothing else."""
    sequence = evolve(state.running[place], **facts)
    return evolve(state, running=Running(state.running.columns.put([place], transposed([sequence]))))


def with_pool(state, **facts):
    """The state with its pool changed."""
    return evolve(state, pool=evolve(state.pool, **facts))


def with_holders(state, holders):
    """The state with another prefix index."""
    return evolve(state, prefix_index=evolve(state.prefix_index, holders=holders))


@pytest.mark.parametrize("count", [None, 1, 3])
def test_reference_counts_are_numbers_of_tables(count) -> None:
    """inv1: a shared block whose count is lost, one short or one too many."""
    state = busy().state
    block = state.running[0].block_table[0]
    shared = state.pool.shared.discard(block) if count is None else state.pool.shared.set(block, count)
    assert "inv1" in found(with_pool(state, shared=shared))


def test_a_count_without_an_owner_is_found() -> None:
    """inv1: a free block that is counted as shared."""
    state = busy().state
    assert "inv1" in found(with_pool(state, shared=state.pool.shared.set(11, 2)))


def test_every_block_is_free_or_held() -> None:
    """inv2: a held block in the free list, a free one that is gone from it, a held one said never to be handed out."""
    state = busy().state
    pool = state.pool
    assert "inv2" in found(with_pool(state, returned=pool.returned.push(state.running[0].block_table[0])))
    assert "inv2" in found(with_pool(state, frontier=pool.frontier + 1))
    assert "inv2" in found(with_pool(state, frontier=pool.frontier - 1))


def test_every_free_block_is_free_once() -> None:
    """inv2: a block that was released twice has two places among the free ones, whichever they are."""
    state = busy().state
    returned = state.pool.returned
    cached = next(iter(state.pool.cached.values()))[0]
    assert "inv2" in found(with_pool(state, returned=returned.push(cached)))
    assert "inv2" in found(with_pool(state, returned=returned.push(state.pool.frontier)))


def test_no_table_has_a_block_twice() -> None:
    """inv3: the last block of a table again in front of it."""
    state = busy().state
    table = tuple(state.running[0].block_table)
    twice = type(state.running[0].block_table)().extend((*table[:-2], table[-1], table[-1]))
    assert "inv3" in found(changed(state, 0, block_table=twice))


def test_a_block_in_two_tables_holds_one_prefix() -> None:
    """inv5: one of two owners has another prefix by now, or the block is shared and not published."""
    state = busy().state
    chain = state.running[1].chain
    other = type(chain)().extend([b"x" * 16, *list(chain)[1:]])
    assert {"inv5", "inv13"} <= found(changed(state, 1, chain=other))
    assert "inv5" in found(with_holders(state, state.prefix_index.holders.discard(chain[0])))


def test_a_table_is_just_long_enough() -> None:
    """inv7: a sequence has computed a block more than it holds; a waiting one has computed something."""
    state = busy().state
    computed = state.running[0].num_computed_tokens
    assert "inv7" in found(changed(state, 0, num_computed_tokens=computed + 4))
    waiting = evolve(state.waiting.get(3), num_computed_tokens=1)
    assert "inv7" in found(evolve(state, waiting=state.waiting.set(3, waiting)))


def test_a_sequence_is_in_one_place_with_one_row() -> None:
    """inv8: running and waiting at once, a row given out twice, a child that its request has forgotten."""
    state = busy().state
    assert "inv8" in found(evolve(state, waiting=state.waiting.set(1, state.running[0])))
    assert "inv8" in found(evolve(state, rows=(*state.rows, state.running[0].row)))
    assert "inv8" in found(evolve(state, by_request=state.by_request.discard(0)))


def test_placeholders_are_what_is_in_flight() -> None:
    """inv9: the plan that will sample for them is forgotten."""
    state = busy().state
    assert "inv9" in found(evolve(state, in_flight=()))


def test_a_live_sequence_is_shorter_than_its_end() -> None:
    """inv10: one that has all its tokens and lives on, one that may grow further than asked for."""
    state = busy().state
    assert "inv10" in found(changed(state, 0, num_tokens=state.running[0].max_num_tokens))
    assert "inv10" in found(changed(state, 0, max_num_tokens=state.running[0].max_num_tokens + 1))


def test_the_index_names_blocks_that_hold_something() -> None:
    """inv11: an empty entry, a block under two prefixes, a free block that is published and not cached."""
    state = busy().state
    holders, chain = state.prefix_index.holders, state.running[0].chain
    assert "inv11" in found(with_holders(state, holders.set(b"x" * 16, ())))
    assert "inv11" in found(with_holders(state, holders.set(b"x" * 16, holders.get(chain[0]))))
    assert "inv11" in found(with_holders(state, holders.set(b"x" * 16, (11,))))
    digest = next(iter(state.pool.cached.values()))[1]
    assert "inv11" in found(with_holders(state, holders.discard(digest)))


def test_a_chain_has_every_full_block() -> None:
    """inv12: a digest is missing, or tokens beyond the last full block are."""
    state = busy().state
    assert "inv12" in found(changed(state, 0, chain=state.running[0].chain.pop(1)[1]))
    assert "inv12" in found(changed(state, 0, tail=b""))


def test_a_published_block_has_its_owners_prefix() -> None:
    """inv13: the first block is published under the second's digest; only the second of a table is published."""
    state = busy().state
    (first, second), holders = list(state.running[0].chain)[:2], state.prefix_index.holders
    swapped = holders.set(first, holders.get(second)).set(second, holders.get(first))
    assert "inv13" in found(with_holders(state, swapped))
    assert "inv13" in found(with_holders(state, holders.discard(first)))


def test_the_memo_of_a_steady_step_follows_from_the_rest() -> None:
    """inv55: a memo kept while a sequence grew, while a plan came back, or while somebody joined."""
    run = busy()
    steady = run.state.running.steady
    assert steady is not None
    columns = run.state.running.columns
    assert not found(evolve(run.state, running=Running(columns, steady)))
    for wrong in (
        steady._replace(num_tokens=steady.num_tokens + 1),
        steady._replace(plans=()),
        steady._replace(plans=(99,)),
        steady._replace(cohort=evolve(steady.cohort, grants=steady.cohort.grants[:1])),
        steady._replace(cohort=evolve(steady.cohort, first_to_end=1 - steady.cohort.first_to_end)),
    ):
        assert "inv55" in found(evolve(run.state, running=Running(columns, wrong)))


def test_plans_in_flight_are_in_launch_order() -> None:
    """inv56: two plans in the wrong order, one plan twice, one without entries."""
    run = busy()
    run.step(grants(3))
    first, second = run.state.in_flight
    assert not found(run.state)
    assert "inv56" in found(evolve(run.state, in_flight=(second, first)))
    assert "inv56" in found(evolve(run.state, in_flight=(first, first)))
    assert "inv56" in found(evolve(run.state, in_flight=(first, evolve(second, entries=second.entries[:0]))))


def stepped():
    """A step of a busy run that prefills one sequence and decodes two."""
    run = busy()
    before = run.state
    step_plan = run.step(grants(3, 1, 2))
    assert len(step_plan.entries) == 3
    return before, run.log[-1], run.state, step_plan


def found_in_step(before, event, after, *effects):
    """Ids of what is wrong with a transition."""
    return {finding.invariant for finding in step_violations(before, event, after, effects)}


def found_in_plan(**columns):
    """Ids of what is wrong with the step of `stepped` if some columns of its entries were others."""
    before, event, after, step_plan = stepped()
    wrong = evolve(step_plan, entries=evolve(step_plan.entries, **columns))
    return found_in_step(before, event, after, *step_plan.effects, Launched(wrong))


def test_a_right_step_has_no_findings() -> None:
    """The step that the faults are planted into."""
    assert found_in_plan() == set()


def test_a_plan_keeps_within_the_limits() -> None:
    """inv22: more tokens than the budget, an empty entry, a sequence twice, more entries than rows."""
    assert "inv22" in found_in_plan(num_tokens=(1_000, 1, 1))
    assert "inv22" in found_in_plan(num_tokens=(0, 1, 1))
    assert "inv22" in found_in_plan(sequence_id=(3, 1, 1))
    before, event, after, step_plan = stepped()
    few = evolve(before, limits=evolve(before.limits, max_num_seqs=2))
    assert "inv22" in found_in_step(few, event, after, *step_plan.effects, Launched(step_plan))


def test_what_is_planned_runs_as_it_is_planned() -> None:
    """inv23: an entry of another epoch, of another row, or of a sequence that does not run."""
    assert "inv23" in found_in_plan(epoch=(0, 1, 0))
    assert "inv23" in found_in_plan(row=(0, 0, 0))
    assert "inv23" in found_in_plan(sequence_id=(3, 1, 7))


def test_a_plan_continues_where_the_last_one_ended() -> None:
    """inv24: a position too early or too late, a token too many."""
    _, _, _, step_plan = stepped()
    first, *rest = step_plan.entries.first_position
    for position in (first - 1, first + 1):
        assert "inv24" in found_in_plan(first_position=(position, *rest))
    assert "inv24" in found_in_plan(num_tokens=(2, 1, 1))


def test_each_slot_has_one_writer_and_no_reader_elsewhere() -> None:
    """inv25: two sequences write one block; the block that is written is published."""
    before, event, after, step_plan = stepped()
    chain = after.running[0].chain
    written = after.running[0].block_table.last
    published = after.prefix_index.holders.set(chain[0], (*after.prefix_index.holders.get(chain[0]), written))
    effects = (*step_plan.effects, Launched(step_plan))
    assert "inv25" in found_in_step(before, event, with_holders(after, published), *effects)
    twice, (third, first, _) = (
        changed(after, 1, block_table=after.running[0].block_table),
        step_plan.entries.first_position,
    )
    side_by_side = evolve(step_plan, entries=evolve(step_plan.entries, first_position=(third, first, first)))
    assert "inv25" in found_in_step(before, event, twice, *step_plan.effects, Launched(side_by_side))


def test_only_the_last_known_token_is_followed_by_a_sample() -> None:
    """inv28: a sample is missing, or one is taken in the middle of a prompt."""
    assert "inv28" in found_in_plan(samples=(True, False, True))
    run = work(request(0, 9))
    before = run.state
    step_plan = run.step(grants((0, 4)))
    wrong = evolve(step_plan, entries=evolve(step_plan.entries, samples=(True,)))
    assert "inv28" in found_in_step(before, run.log[-1], run.state, *step_plan.effects, Launched(wrong))


def test_a_rejection_leaves_the_state_as_it_was() -> None:
    """inv35: something was changed before the request was refused, or a step was counted in passing."""
    state = busy().state
    refused = Rejected(9, "empty_prompt", 1, 0)
    assert found_in_step(state, RequestArrived(request(9, [])), state, refused) == set()
    other = evolve(state, next_sequence_id=state.next_sequence_id + 1)
    assert "inv35" in found_in_step(state, RequestArrived(request(9, [])), other, refused)
    counted = evolve(state, num_steps=state.num_steps + 1)
    assert "inv35" in found_in_step(state, RequestAborted(77), counted)


def test_only_results_commit_tokens() -> None:
    """inv37: an abort that brings a token."""
    state = busy().state
    assert "inv37" in found_in_step(state, RequestAborted(77), state, TokensCommitted((1,), (5,), (11,)))


def test_whoever_leaves_has_finished_and_nobody_comes_from_nowhere() -> None:
    """safe9: a sequence that is gone without an ending, one that ends and stays, one that ends twice, one too many."""
    state = busy().state
    gone = evolve(state, waiting=state.waiting.discard(3), by_request=state.by_request.set(1, (2,)))
    ending = Finished(3, "abort", None, 0)
    assert found_in_step(state, RequestAborted(77), gone, ending) == set()
    assert "safe9" in found_in_step(state, RequestAborted(77), gone)
    assert "safe9" in found_in_step(state, RequestAborted(77), state, ending)
    assert "safe9" in found_in_step(state, RequestAborted(77), gone, ending, ending)
    assert "safe9" in found_in_step(gone, RequestAborted(77), state)


def test_outputs_only_grow_by_what_is_told() -> None:
    """safe10: a token that nobody was told of, one that was told and is not there, one that was taken back."""
    run = busy()
    before, after = run.state, changed(run.state, 0, num_tokens=run.state.running[0].num_tokens + 1)
    assert "safe10" in found_in_step(before, RequestAborted(77), after)
    assert "safe10" in found_in_step(after, RequestAborted(77), before)
    assert "safe10" in found_in_step(before, RequestAborted(77), before, TokensCommitted((1,), (5,), (11,)))


def launched(run, executor, step_plan, known=None):
    """Run a plan on another shadow executor."""
    executor.launch(run.state, step_plan, known or run.known_tokens)


def test_a_slot_is_written_once_while_its_owner_keeps_it() -> None:
    """inv26: the shadow executor refuses a plan that writes where the one before wrote."""
    run, executor = work(request(0, 3)), ShadowExecutor(4)
    step_plan = run.step(grants(0))
    launched(run, executor, step_plan)
    with pytest.raises(ShadowMismatchError, match="written twice"):
        launched(run, executor, evolve(step_plan, new_blocks=(), effects=()))


def test_a_query_reads_its_own_prefix() -> None:
    """inv27: the shadow executor refuses to read what another prefix left, and what nobody wrote."""
    for known in ([9, 9, 9], None):
        run, executor = work(request(0, 3)), ShadowExecutor(4)
        launched(run, executor, run.step(grants(0)))
        run.deliver()
        slot = next(iter(executor.memory))
        if known is None:
            del executor.memory[slot]
        else:
            executor.memory[slot] = tuple(known)
        with pytest.raises(ShadowMismatchError, match="reads"):
            launched(run, executor, run.step(grants(0)))
