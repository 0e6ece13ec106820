"""plan: a decision becomes a plan. Total and atomic, and the only place where blocks are allocated."""

from collections.abc import Collection, Iterable

from attrs import evolve

from nanofn.request import Refusal, SequenceId
from nanofn.schedule.abort import aborted
from nanofn.schedule.finish import finish
from nanofn.schedule.grant import Grant, grant_running, grant_waiting
from nanofn.schedule.plan_decodes import Draft, plan_decodes
from nanofn.schedule.preempt import preempt
from nanofn.schedule.steady import plan_steady
from nanofn.state.decision import Decision
from nanofn.state.digest import Digest
from nanofn.state.effects import PlanEffect, Preempted, Refused
from nanofn.state.engine_state import EngineState, digests_being_written, digests_between, digests_of, find
from nanofn.state.running import Running, transposed
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
    steady = state.running.steady
    if steady is not None and decision.grants == steady.cohort.grants and not (decision.preempt or decision.shed):
        planned = plan_steady(state, steady)
        if planned is not None:
            return planned
    effects: tuple[PlanEffect, ...] = ()
    if decision.preempt or decision.shed:
        state, effects = _preempt_and_shed(state, decision)
    draft = plan_decodes(state, decision.grants)
    if len(draft.entries.sequence_id) < len(decision.grants):
        state, draft, more = _grant_in_rank_order(state, draft, decision, effects)
        effects += more
    return _launch(state, draft, effects)


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
    state: EngineState, draft: Draft, decision: Decision, effects: Iterable[PlanEffect]
) -> tuple[EngineState, Draft, tuple[PlanEffect, ...]]:
    """Make the grants that follow the draft's, one by one."""
    state = evolve(state, running=draft.running, pool=draft.pool, prefix_index=draft.prefix_index)
    preempted = {effect.sequence_id for effect in effects if isinstance(effect, Preempted)}
    order = decision.victims
    victims = dict.fromkeys([grant[0] for grant in reversed(decision.grants)] if order is None else order)
    being_written = _being_written(state, draft)
    ranked = set(draft.entries.sequence_id)
    budget, behind = state.limits.max_num_batched_tokens - len(ranked), False
    grants: list[Grant] = []
    news: list[PlanEffect] = []
    for sequence_id, count in decision.grants[len(ranked) :]:
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
            chain, size = outcome.sequence.chain, state.limits.block_size
            being_written |= digests_between(chain, outcome.first_position, outcome.num_tokens, size)
        elif outcome is not None:
            news.append(Refused(sequence_id, outcome))
            may_pass = outcome in ("pending_prefix", "repeated", "empty") or decision.skip_blocked
            behind = behind or (waits and not may_pass)
    return state, _with_grants(state, draft, grants), tuple(news)


def _being_written(state: EngineState, draft: Draft) -> set[Digest]:
    """Collect the prefixes that plans in flight and the draft write; nobody asks for them unless a sequence waits."""
    if not len(state.waiting):
        return set()
    return digests_being_written(state) | digests_of(draft.entries, draft.running, state.limits.block_size)


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


def _with_grants(state: EngineState, draft: Draft, grants: list[Grant]) -> Draft:
    """Add grants made one by one, in a state that has their blocks and rows, to a draft."""
    if not grants:
        return Draft(draft.entries, draft.new_blocks, state.running, state.pool, state.prefix_index)
    columns = zip(*[grant.entry for grant in grants], strict=True)
    entries = PlanEntries(*[old + new for old, new in zip(draft.entries.columns, columns, strict=True)])
    new_blocks = [*draft.new_blocks]
    for grant in grants:
        table = grant.sequence.block_table
        new_blocks += [(grant.row, index, table[index]) for index in range(grant.num_known_blocks, len(table))]
    after = {grant.sequence.sequence_id: grant.sequence for grant in grants}
    known = {place: after.pop(key) for place, key in enumerate(state.running.sequence_id) if key in after}
    running = Running(state.running.columns.put(list(known), transposed(known.values()))).append(after.values())
    return Draft(entries, tuple(new_blocks), running, state.pool, state.prefix_index)


def _launch(state: EngineState, draft: Draft, effects: tuple[PlanEffect, ...]) -> tuple[EngineState, StepPlan]:
    if not draft.entries.sequence_id:
        return evolve(state, num_steps=state.num_steps + 1), StepPlan(None, PlanEntries(), (), effects)
    step_plan = StepPlan(state.next_plan_id, draft.entries, draft.new_blocks, effects)
    return state.launched(step_plan, draft.running, draft.pool, draft.prefix_index), step_plan
