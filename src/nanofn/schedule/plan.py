"""plan: a decision becomes a plan. Total and atomic, and the only place where blocks are allocated."""

from collections.abc import Collection, Iterable

from attrs import evolve

from nanofn.request import BlockId, PlanId, Refusal, Row, SequenceId
from nanofn.schedule.abort import aborted
from nanofn.schedule.finish import finish
from nanofn.schedule.grant import Grant, grant_running, grant_waiting
from nanofn.schedule.plan_decodes import plan_decodes
from nanofn.schedule.preempt import preempt
from nanofn.state.decision import Decision
from nanofn.state.effects import PlanEffect, Preempted, Refused
from nanofn.state.engine_state import EngineState, digests_being_written, digests_between, find
from nanofn.state.running import Running
from nanofn.state.sequence import Sequence
from nanofn.state.step_plan import PlanEntries, StepPlan


def plan(state: EngineState, decision: Decision) -> tuple[EngineState, StepPlan]:
    """Carry out what fits of a decision: preempt, then shed, then grants in rank order.

    The first mention of a sequence counts. Tokens are trimmed to what remains and to the budget; blocks are all or
    nothing. A running grant that lacks blocks preempts victims if it then fits: never one that was granted in this
    call or ranks before it. A waiting grant never preempts; one that does not fit refuses all later waiting ones,
    unless the decision skips. Only one whose prefix is being written may be passed.

    Args:
        state: Any state.
        decision: Any decision, however silly.

    Returns:
        The next state and the plan. A plan without entries has no number, and nothing is in flight for it.
    """
    steady = plan_decodes(state, decision)
    if steady is not None:
        return steady
    state, effects = _preempt_and_shed(state, decision)
    state, grants, more = _grant_in_rank_order(state, decision, effects)
    return _launch(state, grants, effects + more)


def _preempt_and_shed(state: EngineState, decision: Decision) -> tuple[EngineState, tuple[PlanEffect, ...]]:
    chosen, running = dict.fromkeys(decision.preempt), state.running.sequence_id
    unknown = [Refused(sequence_id, "unknown") for sequence_id in chosen if sequence_id not in running]
    state, preempted = preempt(state, chosen)
    state, finished = finish(state, [aborted(state, sequence_id) for sequence_id in decision.shed])
    ended = {effect.sequence_id for effect in finished}
    unknown += [
        Refused(sequence_id, "unknown") for sequence_id in dict.fromkeys(decision.shed) if sequence_id not in ended
    ]
    return state, (*preempted, *finished, *unknown)


def _grant_in_rank_order(
    state: EngineState, decision: Decision, effects: Iterable[PlanEffect]
) -> tuple[EngineState, list[Grant], tuple[PlanEffect, ...]]:
    preempted = {effect.sequence_id for effect in effects if isinstance(effect, Preempted)}
    order = decision.victims
    victims = dict.fromkeys([grant[0] for grant in reversed(decision.grants)] if order is None else order)
    being_written = digests_being_written(state) if len(state.waiting) else set()
    budget, behind = state.limits.max_num_batched_tokens, False
    grants: list[Grant] = []
    news: list[PlanEffect] = []
    ranked: set[SequenceId] = set()
    for sequence_id, count in decision.grants:
        is_repeated = sequence_id in ranked
        ranked.add(sequence_id)
        if count == 0 and not is_repeated:
            continue
        sequence = find(state, sequence_id)
        waits = sequence is not None and sequence.row is None
        outcome: Grant | Refusal | None = "repeated" if is_repeated else None
        outcome = outcome or _refusal(state, sequence, count, budget, behind=behind, preempted=preempted)
        if outcome is None and sequence is not None:
            changes: tuple[PlanEffect, ...]
            if sequence.row is None:
                state, outcome, changes = grant_waiting(state, sequence, min(count, budget), being_written)
            else:
                yielding = (victim for victim in victims if victim not in ranked)
                state, outcome, changes = grant_running(state, sequence, sequence.row, min(count, budget), yielding)
                preempted |= {change.sequence_id for change in changes}
            news.extend(changes)
        if isinstance(outcome, Grant):
            grants.append(outcome)
            budget -= outcome.num_tokens
            if len(state.waiting):
                size = state.limits.block_size
                being_written |= digests_between(outcome.sequence, outcome.first_position, outcome.num_tokens, size)
        elif outcome is not None:
            news.append(Refused(sequence_id, outcome))
            may_pass = outcome in ("pending_prefix", "repeated", "empty") or decision.skip_blocked
            behind = behind or (waits and not may_pass)
    return state, grants, tuple(news)


def _refusal(
    state: EngineState,
    sequence: Sequence | None,
    count: int,
    budget: int,
    *,
    behind: bool,
    preempted: Collection[SequenceId],
) -> Refusal | None:
    """Name what a grant fails by before blocks are looked at; None if by nothing."""
    if count < 0:
        return "empty"
    if sequence is None:
        return "unknown"
    if sequence.sequence_id in preempted:
        return "preempted"
    if sequence.row is None and behind:
        return "behind"
    if sequence.awaits_result or (
        sequence.row is None and sequence.epoch and _is_in_flight(state, sequence.sequence_id)
    ):
        return "awaits_result"
    return "token_budget" if budget == 0 else None


def _is_in_flight(state: EngineState, sequence_id: SequenceId) -> bool:
    return any(sequence_id in step_plan.entries.sequence_id for step_plan in state.in_flight)


def _launch(state: EngineState, grants: list[Grant], effects: tuple[PlanEffect, ...]) -> tuple[EngineState, StepPlan]:
    if not grants:
        return evolve(state, num_steps=state.num_steps + 1), StepPlan(None, PlanEntries(), (), effects)
    columns = [
        (
            grant.sequence.sequence_id,
            grant.sequence.epoch,
            grant.row,
            grant.first_position,
            grant.num_tokens,
            grant.samples,
        )
        for grant in grants
    ]
    new_blocks: list[tuple[Row, int, BlockId]] = []
    for grant in grants:
        table = grant.sequence.block_table
        new_blocks += [(grant.row, index, table[index]) for index in range(grant.num_known_blocks, len(table))]
    step_plan = StepPlan(state.next_plan_id, PlanEntries(*zip(*columns, strict=True)), tuple(new_blocks), effects)
    state = evolve(
        state,
        running=_advanced(state.running, grants),
        in_flight=(*state.in_flight, step_plan),
        next_plan_id=PlanId(state.next_plan_id + 1),
        num_steps=state.num_steps + 1,
    )
    return state, step_plan


def _advanced(running: Running, grants: Iterable[Grant]) -> Running:
    after = {grant.sequence.sequence_id: grant.sequence for grant in grants}
    tables, computed = list(running.block_table), list(running.num_computed_tokens)
    for index, sequence_id in enumerate(running.sequence_id):
        sequence = after.pop(sequence_id, None)
        if sequence is not None:
            tables[index], computed[index] = sequence.block_table, sequence.num_computed_tokens
    running = evolve(running, block_table=tuple(tables), num_computed_tokens=tuple(computed))
    return running.append(after.values())
