"""commit: the oldest plan's result becomes known tokens, published blocks and endings."""

from attrs import evolve

from nanofn.errors import PlanOrderError
from nanofn.request import PlanId, TokenId
from nanofn.schedule.commit_decodes import commit_decodes
from nanofn.schedule.finish import finish
from nanofn.state.digest import Digest, next_digest, root_digest, token_bytes
from nanofn.state.effects import Finished, TokensCommitted
from nanofn.state.engine_state import EngineState
from nanofn.state.prefix_index import PrefixIndex, publish
from nanofn.state.running import Running, record
from nanofn.state.sequence import Sequence
from nanofn.state.step_plan import PlanEntry, StepPlan, StepResult


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
    if all(step_plan.plan_id != plan_id for step_plan in state.in_flight):
        return state, ()
    step_plan = state.in_flight[0]
    num_samples = sum(step_plan.entries.samples)
    if step_plan.plan_id != plan_id:
        raise PlanOrderError(plan_id, f"plan {step_plan.plan_id}")
    if len(result.token_ids) != num_samples:
        raise PlanOrderError(plan_id, f"{num_samples} tokens instead of {len(result.token_ids)}")
    state = evolve(state, in_flight=state.in_flight[1:])
    return commit_decodes(state, step_plan, result) or _commit_entries(state, step_plan, result)


def _commit_entries(
    state: EngineState, step_plan: StepPlan, result: StepResult
) -> tuple[EngineState, tuple[TokensCommitted | Finished, ...]]:
    running, waiting, index = list(state.running), state.waiting, state.prefix_index
    places = {sequence.sequence_id: place for place, sequence in enumerate(running)}
    tokens = iter(result.token_ids)
    accepted: list[tuple[Sequence, TokenId]] = []
    for entry in step_plan.entries:
        token_id = next(tokens) if entry.samples else None
        place = places.get(entry.sequence_id)
        sequence = waiting.get(entry.sequence_id) if place is None else running[place]
        if sequence is None:
            continue
        if token_id is not None and entry.first_position + entry.num_tokens == sequence.num_tokens:
            sequence = _with_token(state, sequence, token_id, result.now_us)
            accepted.append((sequence, token_id))
        if place is None:
            waiting = waiting.set(sequence.sequence_id, sequence)
        else:
            running[place] = sequence
            if sequence.epoch == entry.epoch:
                index = _publish_written(index, sequence, entry, state.limits.block_size)
    columns = zip(*[record(sequence) for sequence in running], strict=True)
    state = evolve(state, running=Running(*columns), waiting=waiting, prefix_index=index)
    state, finished = finish(state, [ending for pair in accepted if (ending := _ending(*pair)) is not None])
    return state, (*_committed(accepted), *finished)


def _with_token(state: EngineState, sequence: Sequence, token_id: TokenId, now_us: int) -> Sequence:
    """Append an accepted token; digest the block if it is full now."""
    limits, chain, tail = state.limits, sequence.chain, sequence.tail
    num_tokens = sequence.num_tokens + 1
    if limits.enable_prefix_caching:
        tail += token_bytes((token_id,))
        if num_tokens % limits.block_size == 0:
            chain, tail = chain.push(extended_digest(sequence, tail, limits.digest_key)), b""
    return evolve(
        sequence,
        num_tokens=num_tokens,
        first_output_us=now_us if sequence.first_output_us is None else sequence.first_output_us,
        last_output_us=now_us,
        last_output_step=state.num_steps,
        chain=chain,
        tail=tail,
    )


def extended_digest(sequence: Sequence, block: bytes, digest_key: bytes) -> Digest:
    """Digest the block that follows a sequence's chain."""
    chain = sequence.chain
    parent = chain[-1] if len(chain) else root_digest(sequence.request, digest_key)
    return next_digest(parent, block, digest_key)


def _publish_written(index: PrefixIndex, sequence: Sequence, entry: PlanEntry, block_size: int) -> PrefixIndex:
    """Publish the blocks that the entry filled. All their tokens are known: later plans wait for this one."""
    written = min((entry.first_position + entry.num_tokens) // block_size, len(sequence.chain))
    for place in range(entry.first_position // block_size, written):
        index = publish(index, sequence.block_table[place], sequence.chain[place])
    return index


def _ending(sequence: Sequence, token_id: TokenId) -> Finished | None:
    """Decide whether an accepted token ends its sequence. A stop token is "stop" even as the last one allowed."""
    request, num_output_tokens = sequence.request, sequence.num_output_tokens
    if token_id in request.stop_token_ids and num_output_tokens > request.min_tokens:
        return Finished(sequence.sequence_id, "stop", token_id, num_output_tokens)
    if sequence.num_tokens == sequence.max_num_tokens:
        return Finished(sequence.sequence_id, "length", None, num_output_tokens)
    return None


def _committed(accepted: list[tuple[Sequence, TokenId]]) -> tuple[TokensCommitted, ...]:
    if not accepted:
        return ()
    ids, counts = zip(*[(sequence.sequence_id, sequence.num_output_tokens) for sequence, _ in accepted], strict=True)
    return (TokensCommitted(ids, tuple([token_id for _, token_id in accepted]), counts),)
