"""plan_decodes: the leading decodes of a decision, all at once.

In nearly every step each running sequence decodes one token. Those grants that do, from the first on, are made on whole
columns here; `plan` makes the others one by one. A test holds the two ways equal.
"""

from operator import sub
from typing import NamedTuple

from nanofn.request import BlockId, Row, SequenceId
from nanofn.state.block_pool import BlockPool, allocate
from nanofn.state.engine_state import EngineState
from nanofn.state.prefix_index import PrefixIndex
from nanofn.state.running import Running
from nanofn.state.steady import Steady
from nanofn.state.step_plan import PlanEntries


class Draft(NamedTuple):
    """A plan in the making, and what it makes of a state.

    Attributes:
        entries: The plan's entries so far, in rank order.
        new_blocks: The changes of their block tables.
        running: The running sequences once it is launched.
        pool: The block pool after it.
        prefix_index: The prefix index after it.
    """

    entries: PlanEntries
    new_blocks: tuple[tuple[Row, int, BlockId], ...]
    running: Running
    pool: BlockPool
    prefix_index: PrefixIndex


def plan_decodes(state: EngineState, grants: tuple[tuple[SequenceId, int], ...]) -> Draft:
    """Plan one token for each grant, from the first on, as long as that is all there is to do.

    The run of grants ends before one that is not a running sequence with exactly one token left, is repeated or empty,
    exceeds the budget, or finds no free block.
    """
    running, pool, prefix_index = state.running, state.pool, state.prefix_index
    places, steady = _leading(state, grants)
    decoding, size = running.take(places), state.limits.block_size
    computed, tables, rows = decoding.num_computed_tokens, decoding.block_table, decoding.row
    if steady is None:
        opening = tuple([number for number, position in enumerate(computed) if not position % size])
    else:
        opening = running.places_with(1 - len(steady.plans), size)
    new_blocks: tuple[tuple[Row, int, BlockId], ...] = ()
    if opening:
        if len(opening) > pool.num_free:
            return plan_decodes(state, grants[: opening[pool.num_free]])
        pool, prefix_index, blocks = allocate(pool, prefix_index, len(opening))
        grown = list(tables)
        for number, block_id in zip(opening, blocks, strict=True):
            grown[number] = grown[number].push(block_id)
        tables = tuple(grown)
        new_blocks = tuple([(rows[i], computed[i] // size, block) for i, block in zip(opening, blocks, strict=True)])
    number = len(computed)
    entries = PlanEntries(decoding.sequence_id, decoding.epoch, rows, computed, (1,) * number, (True,) * number)
    # Without plans in flight there are no placeholders: one token left means that the known ones will be computed.
    advanced = tuple([position + 1 for position in computed]) if state.in_flight else decoding.num_tokens
    if steady is not None:
        steady = steady.launched(state.next_plan_id)
    return Draft(
        entries, new_blocks, running.put(places, decoding.advanced(tables, advanced, steady)), pool, prefix_index
    )


def _leading(state: EngineState, grants: tuple[tuple[SequenceId, int], ...]) -> tuple[range | list[int], Steady | None]:
    """Find the places of the sequences that the leading decodes name, and a memo if they are all that run.

    Blocks are not looked at.
    """
    running, steady = state.running, state.running.steady
    longest = min(len(grants), len(running.sequence_id), state.limits.max_num_batched_tokens)
    if steady is not None and grants[:longest] == steady.grants and running.may_decode(steady):
        return range(longest), steady
    if not longest:
        return range(0), None
    ids, counts = zip(*grants[:longest], strict=True)
    if min(counts) < 1:
        ids = ids[: [count < 1 for count in counts].index(True)]
    places = running.places(ids)
    part = running.take(places)
    number = next((place for place, count in enumerate(part.num_remaining_tokens) if count != 1), len(places))
    if part is running and number == len(places) and max(counts) == 1 and _decodes_only(state):
        plans = tuple([step_plan.plan_id for step_plan in state.in_flight if step_plan.plan_id is not None])
        return places, running.formed(grants[:longest], plans, state.limits.block_size)
    return places[:number], None


def _decodes_only(state: EngineState) -> bool:
    """Whether each plan in flight decodes one token of each running sequence, which had an output token before."""
    running = state.running
    ahead = tuple(map(sub, running.num_computed_tokens, running.num_tokens))
    return (
        ahead == (len(state.in_flight) - 1,) * len(ahead)
        and None not in running.first_output_us
        and all(max(step_plan.entries.num_tokens) == 1 for step_plan in state.in_flight)
    )
