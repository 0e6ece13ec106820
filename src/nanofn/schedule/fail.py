"""fail: a plan will have no result."""

from attrs import evolve

from nanofn.request import PlanId
from nanofn.schedule.preempt import preempt
from nanofn.state.effects import Preempted
from nanofn.state.engine_state import EngineState


def fail(state: EngineState, plan_id: PlanId) -> tuple[EngineState, tuple[Preempted, ...]]:
    """Drop a plan in flight and all later ones, and preempt the sequences they name.

    No request is lost and no text: the sequences keep their known tokens and compute them anew. Blocks that the
    plans half wrote were not published, so nobody else reads them. A plan that is not in flight changes nothing.

    Returns:
        The next state, and Preempted for each running sequence that a dropped plan names in its current epoch.
    """
    kept = tuple([plan for plan in state.in_flight if plan.plan_id is not None and plan.plan_id < plan_id])
    dropped = state.in_flight[len(kept) :]
    if not dropped or dropped[0].plan_id != plan_id:
        return state, ()
    named = {(entry.sequence_id, entry.epoch) for plan in dropped for entry in plan.entries}
    columns = state.running.columns
    lost = [key[0] for key in zip(columns.sequence_id, columns.epoch, strict=True) if key in named]
    return preempt(evolve(state, in_flight=kept), frozenset(lost))
