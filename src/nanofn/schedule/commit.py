"""commit: the oldest plan's result becomes known tokens, published blocks and endings."""

from itertools import compress

from attrs import evolve

from nanofn.errors import PlanOrderError
from nanofn.request import BlockId, PlanId, SequenceId, TokenId
from nanofn.schedule.commit_decodes import Committed, commit_decodes
from nanofn.schedule.ending import ending
from nanofn.schedule.finish import finish
from nanofn.schedule.steady import commit_steady
from nanofn.state.digest import Digest, grown, token_bytes
from nanofn.state.effects import Finished, TokensCommitted
from nanofn.state.engine_state import EngineState
from nanofn.state.prefix_index import publish
from nanofn.state.running import Running, transposed
from nanofn.state.sequence import Sequence
from nanofn.state.sorted_table import SortedTable
from nanofn.state.step_plan import PlanEntries, PlanEntry, StepResult


def commit(
    state: EngineState, plan_id: PlanId, result: StepResult
) -> tuple[EngineState, tuple[TokensCommitted | Finished, ...]]:
    """Take in the result of the oldest plan in flight.

    A token is accepted iff its sequence lives and its position is the next one, whatever the epoch: a preempted
    sequence keeps what was sampled for it. A block is published iff the entry's epoch is current and all its tokens
    are known and written. A sequence ends with "stop" by a stop token after `min_tokens`, else with "length" at its
    last token; both are decided here, in entry order.

    Args:
        state: Any state.
        plan_id: The oldest plan in flight. One that is not in flight any more (dropped by `fail`) changes nothing.
        result: What the executor returned for it.

    Returns:
        The next state; TokensCommitted if any token was accepted, then Finished for each ending.

    Raises:
        PlanOrderError: An older plan has no result yet, or the number of tokens is not that of sampling entries.
    """
    if not state.in_flight:
        return state, ()
    step_plan, token_ids = state.in_flight[0], result.token_ids
    if step_plan.plan_id != plan_id:
        if plan_id not in [step_plan.plan_id for step_plan in state.in_flight]:
            return state, ()
        raise PlanOrderError(plan_id, f"plan {step_plan.plan_id}")
    waiting, steady = state.waiting, state.running.steady
    samples = step_plan.entries.samples
    num_samples = samples.count(True) if steady is None else len(samples)
    if len(token_ids) != num_samples:
        raise PlanOrderError(plan_id, f"{num_samples} tokens instead of {len(token_ids)}")
    if steady is not None:
        done = commit_steady(state, steady, step_plan.entries, token_ids, result.now_us)
    else:
        entries, tokens = _living(state, step_plan.entries, token_ids)
        done = commit_decodes(state, entries, tokens, result.now_us)
        number = len(done.sequence_ids)
        if number < len(entries.sequence_id):
            waiting, done = _commit_one_by_one(state, done, entries[number:], tokens[number:], result.now_us)
    state = state.committed(waiting, done.running, done.prefix_index)
    effects: tuple[TokensCommitted | Finished, ...] = ()
    if done.sequence_ids:
        effects = (TokensCommitted(done.sequence_ids, done.token_ids, done.num_tokens),)
    if done.endings:
        state, finished = finish(state, done.endings)
        effects += finished
    return state, effects


def _living(
    state: EngineState, entries: PlanEntries, token_ids: tuple[TokenId, ...]
) -> tuple[PlanEntries, tuple[TokenId | None, ...]]:
    """Give each entry its token or None, and drop the entries of sequences that have ended."""
    if entries.sequence_id == state.running.sequence_id and len(token_ids) == len(entries):
        return entries, token_ids
    tokens, running = iter(token_ids), frozenset(state.running.sequence_id)
    given = [next(tokens) if samples else None for samples in entries.samples]
    alive = [key in running or state.waiting.get(key) is not None for key in entries.sequence_id]
    if all(alive):
        return entries, tuple(given)
    return PlanEntries(*[tuple(compress(column, alive)) for column in entries.columns]), tuple(compress(given, alive))


def _commit_one_by_one(
    state: EngineState, done: Committed, entries: PlanEntries, tokens: tuple[TokenId | None, ...], now_us: int
) -> tuple[SortedTable[SequenceId, Sequence], Committed]:
    """Commit the entries that follow those done, whose sequences are alive."""
    running, waiting, index, size = done.running, state.waiting, done.prefix_index, state.limits.block_size
    places = {sequence_id: place for place, sequence_id in enumerate(running.sequence_id)}
    changed: dict[int, Sequence] = {}
    accepted: list[tuple[SequenceId, TokenId, int]] = []
    endings: list[Finished] = [*done.endings]
    for entry, token_id in zip(entries, tokens, strict=True):
        place = places.get(entry.sequence_id)
        sequence = waiting.get(entry.sequence_id) if place is None else running[place]
        if sequence is None:
            continue
        if token_id is not None and entry.first_position + entry.num_tokens == sequence.num_tokens:
            sequence = _with_token(state, sequence, token_id, now_us)
            accepted.append((sequence.sequence_id, token_id, sequence.num_tokens))
            end = ending(sequence, token_id)
            endings += [end] if end is not None else []
        if place is None:
            waiting = waiting.set(sequence.sequence_id, sequence)
        else:
            changed[place] = sequence
            if sequence.epoch == entry.epoch:
                index = publish(index, _written(sequence, entry, size))
    ids, token_ids, counts = zip(*accepted, strict=True) if accepted else ((), (), ())
    return waiting, Committed(
        Running(running.columns.put(list(changed), transposed(changed.values()))) if changed else running,
        index,
        done.sequence_ids + ids,
        done.token_ids + token_ids,
        done.num_tokens + counts,
        tuple(endings),
    )


def _with_token(state: EngineState, sequence: Sequence, token_id: TokenId, now_us: int) -> Sequence:
    """Append an accepted token; digest the block if it is full now."""
    chain, tail, num_tokens = sequence.chain, sequence.tail, sequence.num_tokens + 1
    if state.limits.enable_prefix_caching:
        tail += token_bytes((token_id,))
        if num_tokens % state.limits.block_size == 0:
            chain, tail = grown(chain, tail, sequence.request, state.limits.digest_key), b""
    return evolve(
        sequence,
        num_tokens=num_tokens,
        first_output_us=now_us if sequence.first_output_us is None else sequence.first_output_us,
        last_output_us=now_us,
        last_output_step=state.num_steps,
        chain=chain,
        tail=tail,
    )


def _written(sequence: Sequence, entry: PlanEntry, block_size: int) -> list[tuple[BlockId, Digest]]:
    """List the blocks that the entry filled. All their tokens are known: later plans wait for this one."""
    written = min((entry.first_position + entry.num_tokens) // block_size, len(sequence.chain))
    places = range(entry.first_position // block_size, written)
    return [(sequence.block_table[place], sequence.chain[place]) for place in places]
