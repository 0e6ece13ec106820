"""Steady steps: every running sequence decodes one token. Nearly all are of this kind.

`plan` and `commit` take these short ways where the memo `Steady` allows them. A test holds them equal to the long ways.
"""

from nanofn.request import BlockId, Row, TokenId
from nanofn.schedule.commit_decodes import Committed, digested, ended, last_blocks
from nanofn.state.block_pool import allocate
from nanofn.state.effects import Finished
from nanofn.state.engine_state import EngineState
from nanofn.state.prefix_index import publish
from nanofn.state.running import Running
from nanofn.state.steady import Steady
from nanofn.state.step_plan import PlanEntries, StepPlan


def plan_steady(state: EngineState, steady: Steady) -> tuple[EngineState, StepPlan] | None:
    """Plan one token for every running sequence; None where one awaits a result, or budget or blocks do not suffice."""
    columns, limits, pool, index = state.running.columns, state.limits, state.pool, state.prefix_index
    number, computed, tables = len(columns.sequence_id), columns.num_computed_tokens, columns.block_table
    may_decode = steady.may_decode(columns.num_tokens, columns.max_num_tokens)
    if not may_decode or number > limits.max_num_batched_tokens:
        return None
    new_blocks: tuple[tuple[Row, int, BlockId], ...] = ()
    opening = steady.places_with(1 - len(steady.plans), limits.block_size)
    if opening:
        if len(opening) > pool.num_free:
            return None
        pool, index, blocks = allocate(pool, index, len(opening))
        grown, size = list(tables), limits.block_size
        for place, block_id in zip(opening, blocks, strict=True):
            grown[place] = grown[place].push(block_id)
        tables = tuple(grown)
        new_blocks = tuple(
            [(columns.row[i], computed[i] // size, block) for i, block in zip(opening, blocks, strict=True)]
        )
    entries = PlanEntries(columns.sequence_id, columns.epoch, columns.row, computed, (1,) * number, (True,) * number)
    step_plan = StepPlan(state.next_plan_id, entries, new_blocks, ())
    # Without placeholders, one token left means that all known ones will be computed.
    advanced = tuple([position + 1 for position in computed]) if steady.plans else columns.num_tokens
    steady = Steady(steady.cohort, steady.num_tokens, (*steady.plans, state.next_plan_id))
    return state.launched(step_plan, Running(columns.advanced(tables, advanced), steady), pool, index), step_plan


def commit_steady(
    state: EngineState, steady: Steady, entries: PlanEntries, token_ids: tuple[TokenId, ...], now_us: int
) -> Committed:
    """Commit a token of every running sequence, for a plan of which the memo says that it decodes just that."""
    columns, limits, index = state.running.columns, state.limits, state.prefix_index
    if len(token_ids) != len(columns.sequence_id):
        alive = frozenset(columns.sequence_id)
        pairs = zip(entries.sequence_id, token_ids, strict=True)
        token_ids = tuple([token_id for sequence_id, token_id in pairs if sequence_id in alive])
    num_tokens = tuple([count + 1 for count in columns.num_tokens])
    steady = Steady(steady.cohort, steady.num_tokens + 1, steady.plans[1:])
    chains, tails = columns.chain, columns.tail
    if limits.enable_prefix_caching:
        chains, tails = digested(columns, token_ids, steady.places_with, limits)
        # The position just written is the one before the token just sampled.
        written = steady.places_with(1, limits.block_size)
        if written:
            index = publish(index, last_blocks(columns, written, limits.block_size))
    columns = columns.with_tokens(num_tokens, (now_us, state.num_steps), (chains, tails))
    place = steady.cohort.first_to_end
    endings: tuple[Finished, ...] = ()
    stop_token_ids = steady.cohort.stop_token_ids
    if num_tokens[place] == columns.max_num_tokens[place] or (
        stop_token_ids and not stop_token_ids.isdisjoint(token_ids)
    ):
        endings = ended(columns, token_ids)
    return Committed(Running(columns, steady), index, columns.sequence_id, token_ids, num_tokens, endings)
