"""Each sentence that `violations` and `step_violations` can say is said of the fault that it is for, at its border.

The ids are tested next door. One id has several rules, and one fault breaks several of them: here each is told by its words.
"""

import pytest
from attrs import evolve

from core.build import grants, request, work
from invariants.test_what_findings_find import busy, changed, stepped, with_holders, with_pool
from nanofn.state.effects import Finished, Preempted, Rejected, TokensCommitted
from nanofn.state.events import Launched, RequestAborted, RequestArrived
from nanofn.state.invariants import violations
from nanofn.state.running import Running
from nanofn.state.step_invariants import step_violations


def says(state, words):
    """Whether one of the findings in a state has these words."""
    return any(words in finding.detail for finding in violations(state))


def last_held(state):
    """The held block with the greatest id."""
    return max(block for table in state.running.columns.block_table for block in table)


def cut(stack, count):
    """A stack without its last items."""
    return stack.pop(count)[0]


def unnamed(state):
    """Nobody has a chain, and nothing is published."""
    for place in range(len(state.running)):
        state = changed(state, place, chain=cut(state.running[place].chain, 9))
    return with_holders(state, type(state.prefix_index.holders)())


def cached_once_more(state, **facts):
    """The state with one cached block's stamp, digest or count changed."""
    return with_pool(state, cached=evolve(state.pool.cached, **facts))


def last_cached(state):
    """The last of the cached blocks: (stamp, (block, digest))."""
    return list(state.pool.cached)[-1]


FAULTS = {
    "counted 3": lambda s: with_pool(s, shared=s.pool.shared.set(s.running[0].block_table[0], 3)),
    "counted 1": lambda s: with_pool(s, shared=s.pool.shared.discard(s.running[0].block_table[0])),
    "shared 1 times, it is in 1": lambda s: with_pool(s, shared=s.pool.shared.set(s.running[0].block_table.last, 1)),
    "shared 2 times, it is in 0": lambda s: with_pool(s, shared=s.pool.shared.set(11, 2)),
    "do not part": lambda s: with_pool(s, frontier=s.pool.frontier + 1),
    "num_free says": lambda s: cached_once_more(s, size=s.pool.cached.size + 1),
    "lies beyond the frontier": lambda s: with_pool(s, frontier=last_held(s)),
    "has a block twice": lambda s: changed(
        s, 0, block_table=cut(s.running[0].block_table, 1).push(s.running[0].block_table[1])
    ),
    "do not all have its prefix": lambda s: changed(s, 0, chain=cut(s.running[0].chain, 2)),
    "shared by sequences that do not": unnamed,
    "is published under another prefix": lambda s: changed(s, 0, chain=cut(s.running[0].chain, 1)),
    "the one before it is not": lambda s: with_holders(s, s.prefix_index.holders.discard(s.running[0].chain[0])),
    "holds 3 blocks and needs 4": lambda s: changed(s, 0, num_computed_tokens=13),
    "holds 3 blocks and needs 2": lambda s: changed(s, 0, num_computed_tokens=8),
    "waiting sequence 3 has a row or": lambda s: evolve(s, waiting=s.waiting.set(3, evolve(s.waiting.get(3), row=3))),
    "waiting sequence 3 has a row or computed": lambda s: evolve(
        s, waiting=s.waiting.set(3, evolve(s.waiting.get(3), num_computed_tokens=1))
    ),
    "waiting sequence 3 has": lambda s: evolve(s, waiting=s.waiting.discard(3).set(4, s.waiting.get(3))),
    "is in two places": lambda s: evolve(s, waiting=s.waiting.set(1, s.running[0])),
    "are not the 4 there are": lambda s: evolve(s, rows=s.rows[1:]),
    "the live sequences give": lambda s: evolve(s, by_request=s.by_request.set(1, (3, 2))),
    "has 1 placeholders, 0 are in flight": lambda s: evolve(s, in_flight=()),
    "1 placeholders, 0 are in flight": lambda s: changed(s, 0, epoch=1),
    "another prompt length": lambda s: changed(s, 0, num_prompt_tokens=8),
    "may grow to 18, allowed are 17": lambda s: changed(s, 0, max_num_tokens=18),
    "has 17 tokens of at most 16": lambda s: changed(s, 0, num_tokens=17),
    "has 8 tokens of at most 16": lambda s: changed(s, 0, num_tokens=8),
    "computes 17 of 17": lambda s: changed(s, 0, num_computed_tokens=17),
    "is held by ()": lambda s: with_holders(s, s.prefix_index.holders.set(b"x" * 16, ())),
    "is held by (11, 11)": lambda s: with_holders(s, s.prefix_index.holders.set(b"x" * 16, (11, 11))),
    "hold another prefix": lambda s: with_holders(
        s, s.prefix_index.holders.set(b"x" * 16, (11,)).set(b"y" * 16, (10, 11)).set(b"z" * 16, (9,))
    ),
    "stamps do not lead": lambda s: with_pool(s, stamps=s.pool.stamps.set(last_cached(s)[1][0], 77)),
    "a stamp was not given yet": lambda s: with_pool(s, next_stamp=last_cached(s)[0]),
    "not published under its digest": lambda s: with_holders(s, s.prefix_index.holders.discard(last_cached(s)[1][1])),
    "neither held nor cached": lambda s: with_holders(s, s.prefix_index.holders.set(b"x" * 16, (11,))),
    "has a chain of 1 blocks and": lambda s: changed(s, 0, chain=cut(s.running[0].chain, 1)),
    "a tail of 0 bytes": lambda s: changed(s, 0, tail=b""),
    "has a chain of 2 blocks": lambda s: evolve(s, limits=evolve(s.limits, enable_prefix_caching=False)),
    "plans in flight are [None]": lambda s: evolve(s, in_flight=(evolve(s.in_flight[0], plan_id=None),)),
    "plans in flight are [3, 3]": lambda s: evolve(s, in_flight=s.in_flight * 2),
    "an empty plan": lambda s: evolve(s, in_flight=(evolve(s.in_flight[0], entries=s.in_flight[0].entries[:0]),)),
}


@pytest.mark.parametrize("words", FAULTS)
def test_a_fault_is_told_in_its_words(words: str) -> None:
    """Planted into a state without findings."""
    state = busy().state
    assert not violations(state)
    assert says(FAULTS[words](state), words)


def test_findings_come_in_the_order_of_blocks() -> None:
    """Whatever the order in which tables name them."""
    state = busy().state
    table = state.running[0].block_table
    first, second = table[0], table[1]
    state = with_pool(state, shared=state.pool.shared.set(first, 5).set(second, 5))
    turned = changed(state, 0, block_table=type(table)().extend((second, first, table[2])))
    told = [finding.detail for finding in violations(turned) if finding.detail.endswith("counted 5")]
    assert [detail.split()[1] for detail in told] == [str(each) for each in sorted((first, second))]
    told = [finding.detail for finding in violations(turned) if finding.detail.endswith("have its prefix")]
    assert [detail.split()[1] for detail in told] == [str(each) for each in sorted((first, second))]


def test_limits_of_length_are_the_requests_and_the_models() -> None:
    """Whichever is less; a state at its longest has no findings."""
    run = work(request(0, 5, 100), request(1, 5, 3), max_model_len=10)
    assert [each.max_num_tokens for each in run.state.waiting.values()] == [10, 8]
    for _ in range(5):
        run.step(grants(0, 1))
        run.deliver()
        assert not violations(run.state)


def test_a_holder_of_two_prefixes_is_told_with_all_that_came_before() -> None:
    """Also where the first and the third prefix share a block, not the second."""
    state = busy().state
    holders = state.prefix_index.holders.set(b"\x00" * 16, (11,)).set(b"\x01" * 16, (10,)).set(b"\x02" * 16, (11,))
    assert says(with_holders(state, holders), "[11] hold another prefix")


def steady():
    """Two that decode together, two plans ahead: the second one ends first, they have stop tokens."""
    run = work(request(0, 5, 9), request(1, 6, 7, stop_token_ids=(70, 71)), num_blocks=12, max_model_len=30)
    run.step(grants(0, 1))
    run.deliver()
    run.step(grants((0, 1), (1, 1)))
    run.step(grants((0, 1), (1, 1)))
    assert run.state.running.steady is not None
    assert not violations(run.state)
    return run.state


def with_memo(state, cohort=None, **facts):
    """The state with its memo, or the cohort in it, changed."""
    memo = state.running.steady
    memo = memo._replace(cohort=evolve(memo.cohort, **(cohort or {})), **facts)
    return evolve(state, running=Running(state.running.columns, memo))


MEMOS = {
    "the memo grants": lambda s: with_memo(s, {"grants": ((0, 1), (1, 2))}),
    "place 0 is not the first to end": lambda s: with_memo(s, {"first_to_end": 0}),
    "the memo overlooks a stop token": lambda s: with_memo(s, {"stop_token_ids": frozenset({70})}),
    "the memo has (0,) at 1": lambda s: with_memo(s, {"members": {1: (0,), 2: (1,)}}, num_tokens=0),
    "the memo has () at": lambda s: with_memo(s, {"members": {}}),
    "plan 99 decodes []": lambda s: with_memo(s, plans=(1, 99)),
    "plan 1 decodes []": lambda s: evolve(
        s, in_flight=(with_entries(s.in_flight[0], num_tokens=(1, 2)), *s.in_flight[1:])
    ),
    "plan 2 decodes [[0, 1]]": lambda s: evolve(
        s, in_flight=(s.in_flight[0], with_entries(s.in_flight[1], samples=(True, False)))
    ),
    "plan 2 decodes [[1, 0]]": lambda s: evolve(
        s, in_flight=(s.in_flight[0], with_entries(s.in_flight[1], sequence_id=(1, 0)))
    ),
    "the memo knows of plans (2, 1)": lambda s: with_memo(s, plans=(2, 1)),
    "the memo counts 1 placeholders": lambda s: with_memo(s, plans=(1,)),
    "the memo counts 2 placeholders": lambda s: memo_kept(s, num_computed_tokens=(7, 7)),
}


def with_entries(step_plan, **columns):
    """A plan with some columns of its entries changed."""
    return evolve(step_plan, entries=evolve(step_plan.entries, **columns))


def memo_kept(state, **columns):
    """The state with some columns changed, and the memo as it was."""
    return evolve(state, running=Running(state.running.columns._replace(**columns), state.running.steady))


@pytest.mark.parametrize("words", MEMOS)
def test_what_a_memo_says_wrongly_is_told(words: str) -> None:
    """One part of it at a time."""
    assert says(MEMOS[words](steady()), words)


def told(before, event, after, *effects):
    """The words of what is wrong with a transition."""
    return "; ".join([finding.detail for finding in step_violations(before, event, after, effects)])


def told_of_plan(effects=(), **columns):
    """The words of what is wrong with the step of `stepped`, if some columns or effects were others."""
    before, event, after, step_plan = stepped()
    wrong = with_entries(step_plan, **columns)
    return told(before, event, after, *step_plan.effects, *effects, Launched(wrong))


def test_what_a_plan_does_wrong_is_told_in_its_words() -> None:
    """More than the limits, an empty entry, a preempted sequence, another row, another position, another sample."""
    assert told_of_plan() == ""
    assert "exceed the limits" in told_of_plan(num_tokens=(1_000, 1, 1))
    assert "exceed the limits" not in told_of_plan(num_tokens=(998, 1, 1))
    assert "an entry is empty" in told_of_plan(num_tokens=(0, 1, 1))
    assert "a sequence has two" in told_of_plan(sequence_id=(3, 1, 1))
    assert "preempted sequences [1] are planned" in told_of_plan((Preempted(1, 4),))
    assert "sequence 3 is planned and does not run as planned" in told_of_plan(row=(0, 0, 0))
    assert "sequence 2 is planned and does not run as planned" in told_of_plan(epoch=(0, 0, 1))
    assert "sequence 7 is planned and does not run as planned" in told_of_plan(sequence_id=(3, 1, 7))
    assert "samples=False" in told_of_plan(samples=(True, True, False))
    _, _, _, step_plan = stepped()
    first, second, third = step_plan.entries.first_position
    assert f"computes [{second + 1}, " in told_of_plan(first_position=(first, second + 1, third))
    assert "computes [" in told_of_plan(num_tokens=(1, 1, 2))


def test_both_ends_of_what_an_entry_computes_are_told() -> None:
    """A start that is right with an end that is not, and an end that is right with a start that is not."""
    _, _, _, step_plan = stepped()
    first, second, third = step_plan.entries.first_position
    assert "sequence 1 computes [" in told_of_plan(num_tokens=(1, 2, 1))
    assert "sequence 1 computes [" in told_of_plan(
        first_position=(first, second - 1, third), num_tokens=(step_plan.entries.num_tokens[0], 2, 1)
    )


def test_blocks_that_are_shared_or_published_are_not_written() -> None:
    """One of them is enough, and each has its finding; so has a slot that two entries write."""
    before, event, after, step_plan = stepped()
    effects, written = (*step_plan.effects, Launched(step_plan)), after.running[0].block_table.last
    words = "writes a shared or published block"
    assert words in told(before, event, with_pool(after, shared=after.pool.shared.set(written, 2)), *effects)
    published = after.prefix_index.holders.set(b"x" * 16, (written,))
    assert words in told(before, event, with_holders(after, published), *effects)
    twice = changed(after, 1, block_table=after.running[0].block_table)
    assert "written twice" not in told(before, event, twice, *effects)  # two places of one block
    side_by_side = with_entries(step_plan, first_position=(8, 11, 11))
    assert "are written twice in a step" in told(before, event, twice, *step_plan.effects, Launched(side_by_side))


def test_one_published_block_of_several_that_an_entry_writes_is_told() -> None:
    """The first of three; the others are the sequence's own."""
    run = work(request(0, 9))
    before = run.state
    step_plan = run.step(grants(0))
    published = with_holders(
        run.state, run.state.prefix_index.holders.set(b"x" * 16, (run.state.running[0].block_table[0],))
    )
    effects = (*step_plan.effects, Launched(step_plan))
    assert "writes a shared or published block" in told(before, run.log[-1], published, *effects)


def column_items(entries):
    """Names and columns of a plan's entries."""
    names = ("sequence_id", "epoch", "row", "first_position", "num_tokens", "samples")
    return list(zip(names, entries.columns, strict=True))


def test_a_slot_is_told_if_the_first_and_the_last_of_three_write_it() -> None:
    """All that were written so far count, not only those of the entry before."""
    before, event, after, step_plan = stepped()
    columns = {name: (one, three, two) for name, (three, one, two) in column_items(step_plan.entries)}
    wrong = with_entries(step_plan, **columns | {"first_position": (11, 8, 11)})
    twice = changed(after, 1, block_table=after.running[0].block_table)
    assert "written twice" in told(before, event, twice, *step_plan.effects, Launched(wrong))


def test_what_a_transition_says_wrongly_is_told_in_its_words() -> None:
    """Rejections, steps, endings, and tokens."""
    state = busy().state
    more = evolve(state, next_sequence_id=state.next_sequence_id + 1)
    arrived, aborted = RequestArrived(request(9, [])), RequestAborted(77)
    refused = Rejected(9, "empty_prompt", 1, 0)
    assert told(state, arrived, more, refused) == "a rejection changed the state"
    assert told(state, arrived, state, refused) == ""
    assert (
        told(state, aborted, evolve(state, num_steps=state.num_steps + 1)) == "a step was counted that nobody decided"
    )
    gone = evolve(state, waiting=state.waiting.discard(3), by_request=state.by_request.set(1, (2,)))
    ended = Finished(3, "abort", None, 0)
    assert "counted 3" in told(state, aborted, FAULTS["counted 3"](state))
    assert told(state, aborted, gone) == "sequences [3] left, [] were said to"
    assert told(state, aborted, gone, ended, ended) == "sequences [3] left, [3, 3] were said to"
    assert told(gone, aborted, state) == "sequences [3] came from nowhere"
    assert "inv37" in {
        each.invariant for each in step_violations(state, aborted, state, (TokensCommitted((), (), ()),))
    }


def test_outputs_that_grow_otherwise_than_told_are_told() -> None:
    """By two, by one that was told with another count, by one that nobody was told of; and an epoch that went back."""
    state = busy().state
    count, words = state.running[0].num_tokens, "sequence 1 went from"
    grown = changed(state, 0, num_tokens=count + 1)
    aborted = RequestAborted(77)
    assert words not in told(state, aborted, grown, TokensCommitted((1,), (5,), (count + 1,)))
    assert words in told(state, aborted, grown, TokensCommitted((1,), (5,), (count + 2,)))
    assert words in told(state, aborted, grown, TokensCommitted((2,), (5,), (count + 1,)))
    assert words in told(
        state, aborted, changed(state, 0, num_tokens=count + 2), TokensCommitted((1,), (5,), (count + 2,))
    )
    assert words in told(changed(state, 0, epoch=1), aborted, state)
    assert words not in told(state, aborted, changed(state, 0, epoch=1))
