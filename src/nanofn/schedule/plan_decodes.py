"""plan_decodes: the leading decodes of a decision, all at once.

In nearly every step each running sequence decodes one token. Those grants that do, from the first on, are made on whole
columns here; `plan` makes the others one by one. A test holds the two ways equal.
"""

from typing import NamedTuple

from nanofn.request import BlockId, Row, SequenceId
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
    places = _leading(state, grants)
    decoding, pool, prefix_index = state.running.take(places), state.pool, state.prefix_index
    computed, size = decoding.num_computed_tokens, state.limits.block_size
    tables, rows = decoding.block_table, decoding.row
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
    # Without plans in flight there are no placeholders: one token left means that the known ones will be computed.
    advanced = tuple([position + 1 for position in computed]) if state.in_flight else decoding.num_tokens
    running = state.running.put(places, decoding.advanced(tables, advanced))
    return Draft(entries, new_blocks, running, pool, prefix_index)


def _leading(state: EngineState, grants: tuple[tuple[SequenceId, int], ...]) -> range | list[int]:
    """Find the places of the sequences that the leading decodes name; blocks are not looked at."""
    running = state.running
    longest = min(len(grants), len(running.sequence_id), state.limits.max_num_batched_tokens)
    if not longest:
        return range(0)
    ids, counts = zip(*grants[:longest], strict=True)
    if min(counts) < 1:
        ids = ids[: [count < 1 for count in counts].index(True)]
    places = running.places(ids)
    return places[: running.take(places).num_leading_decodes()]
