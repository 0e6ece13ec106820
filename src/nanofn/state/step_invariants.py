"""step_violations: what must hold of every transition, before and after seen together."""

from collections.abc import Iterator

from nanofn.request import BlockId, SequenceId
from nanofn.state.effects import Finished, Preempted, Rejected, Started, TokensCommitted
from nanofn.state.engine_state import EngineState, find
from nanofn.state.events import Effect, Event, Launched, RequestArrived, StepCompleted, StepDecided
from nanofn.state.invariants import Finding, live, published, violations
from nanofn.state.sequence import Sequence
from nanofn.state.step_plan import StepPlan


def step_violations(
    before: EngineState, event: Event, after: EngineState, effects: tuple[Effect, ...]
) -> tuple[Finding, ...]:
    """Check one transition and the state it leads to; an empty tuple means that all is well."""
    return (*transition_violations(before, event, after, effects), *violations(after))


def transition_violations(
    before: EngineState, event: Event, after: EngineState, effects: tuple[Effect, ...]
) -> tuple[Finding, ...]:
    """Check what a transition did and said, without the rules that `after` alone must keep: a state reached twice keeps them."""
    findings = [Finding("inv35", detail) for detail in _rejections(before, event, after, effects)]
    findings += [Finding("safe9", detail) for detail in _conservation(before, event, after, effects)]
    findings += [Finding("safe10", detail) for detail in _outputs_only_grow(before, after, effects)]
    for effect in effects:
        if isinstance(effect, Launched):
            findings += _plan_findings(before, after, effect.step_plan, effects)
    if not isinstance(event, StepCompleted) and any(isinstance(effect, TokensCommitted) for effect in effects):
        findings.append(Finding("inv37", f"{type(event).__name__} committed tokens"))
    return tuple(findings)


def _rejections(before: EngineState, event: Event, after: EngineState, effects: tuple[Effect, ...]) -> Iterator[str]:
    if any(isinstance(effect, Rejected) for effect in effects) and before != after:
        yield "a rejection changed the state"
    if not isinstance(event, StepDecided) and not effects and before.num_steps != after.num_steps:
        yield "a step was counted that nobody decided"


def _conservation(before: EngineState, event: Event, after: EngineState, effects: tuple[Effect, ...]) -> Iterator[str]:
    was = {sequence.sequence_id for sequence in live(before)}
    now = {sequence.sequence_id for sequence in live(after)}
    finished = [effect.sequence_id for effect in effects if isinstance(effect, Finished)]
    if len(set(finished)) != len(finished) or was - now != set(finished):
        yield f"sequences {sorted(was - now)} left, {finished} were said to"
    if now - was and not isinstance(event, RequestArrived):
        yield f"sequences {sorted(now - was)} came from nowhere"


def _outputs_only_grow(before: EngineState, after: EngineState, effects: tuple[Effect, ...]) -> Iterator[str]:
    grown: dict[SequenceId, int] = {}
    for effect in effects:
        if isinstance(effect, TokensCommitted):
            grown = dict(zip(effect.sequence_ids, effect.num_tokens, strict=True))
    for sequence in live(before):
        later = find(after, sequence.sequence_id)
        if later is not None:
            expected = sequence.num_tokens + (sequence.sequence_id in grown)
            is_told = grown.get(sequence.sequence_id, expected) == expected
            if later.num_tokens != expected or not is_told or later.epoch < sequence.epoch:
                yield f"sequence {sequence.sequence_id} went from {sequence.num_output_tokens} to {later.num_output_tokens} outputs"


def _plan_findings(
    before: EngineState, after: EngineState, step_plan: StepPlan, effects: tuple[Effect, ...]
) -> list[Finding]:
    entries, limits = step_plan.entries, before.limits
    preempted = {effect.sequence_id for effect in effects if isinstance(effect, Preempted)}
    findings = []
    if sum(entries.num_tokens) > limits.max_num_batched_tokens or len(entries) > limits.max_num_seqs:
        findings.append(
            Finding("inv22", f"{len(entries)} entries with {sum(entries.num_tokens)} tokens exceed the limits")
        )
    if len(set(entries.sequence_id)) != len(entries) or any(count < 1 for count in entries.num_tokens):
        findings.append(Finding("inv22", "an entry is empty, or a sequence has two"))
    if preempted & set(entries.sequence_id):
        findings.append(
            Finding("inv23", f"preempted sequences {sorted(preempted & set(entries.sequence_id))} are planned")
        )
    cached = {effect.sequence_id: effect.num_cached_tokens for effect in effects if isinstance(effect, Started)}
    written: set[tuple[BlockId, int]] = set()
    digests = published(after)
    for entry in entries:
        sequence = after.running.get(entry.sequence_id)
        earlier = before.running.get(entry.sequence_id)
        start = cached.get(entry.sequence_id) if earlier is None else earlier.num_computed_tokens
        if sequence is None or (sequence.epoch, sequence.row) != (entry.epoch, entry.row):
            findings.append(Finding("inv23", f"sequence {entry.sequence_id} is planned and does not run as planned"))
            continue
        end = entry.first_position + entry.num_tokens
        if entry.first_position != start or sequence.num_computed_tokens != end:
            findings.append(
                Finding("inv24", f"sequence {entry.sequence_id} computes [{entry.first_position}, {end}) after {start}")
            )
        if entry.samples != (end >= sequence.num_tokens):
            findings.append(
                Finding(
                    "inv28", f"sequence {entry.sequence_id} samples={entry.samples} at {end} of {sequence.num_tokens}"
                )
            )
        slots = _slots(sequence, entry.first_position, end, limits.block_size)
        if written & slots:
            findings.append(Finding("inv25", f"slots {sorted(written & slots)} are written twice in a step"))
        if any(block in after.pool.shared or block in digests for block, _ in slots):
            findings.append(Finding("inv25", f"sequence {entry.sequence_id} writes a shared or published block"))
        written |= slots
    return findings


def _slots(sequence: Sequence, first_position: int, end: int, block_size: int) -> set[tuple[BlockId, int]]:
    return {
        (sequence.block_table[position // block_size], position % block_size)
        for position in range(first_position, min(end, len(sequence.block_table) * block_size))
    }
