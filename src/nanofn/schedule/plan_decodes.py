"""plan_decodes: the special path of `plan` for the step that every running sequence decodes one token.

Nearly every step is one. It does what `plan` does, on whole columns: a test holds the two equal.
"""

from operator import itemgetter

from attrs import evolve

from nanofn.request import BlockId, PlanId, Row
from nanofn.state.block_pool import allocate
from nanofn.state.decision import Decision
from nanofn.state.engine_state import EngineState
from nanofn.state.step_plan import PlanEntries, StepPlan

_id, _count = itemgetter(0), itemgetter(1)


def plan_decodes(state: EngineState, decision: Decision) -> tuple[EngineState, StepPlan] | None:
    """Plan one token for every running sequence; None where the decision or the state asks for anything else.

    Applies if the grants name exactly the running sequences in order, each has one token left and may be planned, and
    budget and free blocks suffice for all of them.
    """
    running, limits = state.running, state.limits
    ids, computed = running.sequence_id, running.num_computed_tokens
    grants = decision.grants
    if not ids or len(grants) != len(ids) or len(ids) > limits.max_num_batched_tokens:
        return None
    if decision.preempt or decision.shed or tuple(map(_id, grants)) != ids or min(map(_count, grants)) < 1:
        return None
    if not running.only_decode:
        return None
    size = limits.block_size
    opening = [index for index, position in enumerate(computed) if position % size == 0]
    if len(opening) > state.pool.num_free:
        return None
    pool, prefix_index, tables = state.pool, state.prefix_index, running.block_table
    new_blocks: tuple[tuple[Row, int, BlockId], ...] = ()
    if opening:
        pool, prefix_index, blocks = allocate(pool, prefix_index, len(opening))
        grown = list(tables)
        for index, block_id in zip(opening, blocks, strict=True):
            grown[index] = grown[index].push(block_id)
        tables = tuple(grown)
        new_blocks = tuple(
            [(running.row[i], computed[i] // size, block) for i, block in zip(opening, blocks, strict=True)]
        )
    entries = PlanEntries(ids, running.epoch, running.row, computed, (1,) * len(ids), (True,) * len(ids))
    step_plan = StepPlan(state.next_plan_id, entries, new_blocks, ())
    advanced = tuple([position + 1 for position in computed])
    state = evolve(
        state,
        pool=pool,
        prefix_index=prefix_index,
        running=evolve(running, block_table=tables, num_computed_tokens=advanced),
        in_flight=(*state.in_flight, step_plan),
        next_plan_id=PlanId(state.next_plan_id + 1),
        num_steps=state.num_steps + 1,
    )
    return state, step_plan
