"""plan_decodes: the leading decodes of a decision, all at once.

In nearly every step each running sequence decodes one token. Those grants that do, from the first on, are made on whole
columns here; `plan` makes the others one by one. A test holds the two ways equal.
"""

from operator import sub
from typing import NamedTuple

from nanofn.request import BlockId, PlanId, Row, SequenceId
from nanofn.state.block_pool import BlockPool, allocate
from nanofn.state.engine_state import EngineState
from nanofn.state.prefix_index import PrefixIndex
from nanofn.state.running import Running
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
    places, plans = _leading(state, grants)
    columns, pool, prefix_index = state.running.columns, state.pool, state.prefix_index
    decoding, size = columns.take(places), state.limits.block_size
    computed, tables, rows = decoding.num_computed_tokens, decoding.block_table, decoding.row
    new_blocks: tuple[tuple[Row, int, BlockId], ...] = ()
    opening = [number for number, position in enumerate(computed) if not position % size]
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
    advanced = decoding.advanced(tables, tuple([position + 1 for position in computed]))
    steady = None
    if plans is not None:
        steady = state.running.formed(grants[:number], (*plans, state.next_plan_id), size)
    return Draft(entries, new_blocks, Running(columns.put(places, advanced), steady), pool, prefix_index)


def _leading(
    state: EngineState, grants: tuple[tuple[SequenceId, int], ...]
) -> tuple[range | list[int], tuple[PlanId, ...] | None]:
    """Find the places of the sequences that the leading decodes name. Blocks are not looked at.

    Where those are all that run, the second result lists the plans in flight, if each of them decodes just them as well:
    then a memo may be formed.
    """
    running = state.running
    longest = min(len(grants), len(running), state.limits.max_num_batched_tokens)
    if not longest:
        return range(0), None
    ids, counts = zip(*grants[:longest], strict=True)
    if min(counts) < 1:
        ids = ids[: [count < 1 for count in counts].index(True)]
    places = running.places(ids)
    remaining = running.columns.take(places).num_remaining_tokens
    number = next((place for place, count in enumerate(remaining) if count != 1), len(places))
    forms = isinstance(places, range) and number == len(running) and max(counts) == 1 and _decodes_only(state)
    plans = tuple([step_plan.plan_id for step_plan in state.in_flight if step_plan.plan_id is not None])
    return places[:number], plans if forms else None


def _decodes_only(state: EngineState) -> bool:
    """Whether each plan in flight decodes one token of each running sequence in order, none of them its first output."""
    columns = state.running.columns
    ahead = tuple(map(sub, columns.num_computed_tokens, columns.num_tokens))
    in_flight = [step_plan.entries for step_plan in state.in_flight]
    return (
        ahead == (len(in_flight) - 1,) * len(ahead)
        and None not in columns.first_output_us
        and all(entries.sequence_id == columns.sequence_id and max(entries.num_tokens) == 1 for entries in in_flight)
    )
