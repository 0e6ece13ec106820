"""fingerprint: one key for all states that differ only in names.

Sequences, rows, blocks and plans lose their numbers, times and finished steps are forgotten. What a later step can depend
on stays: what each sequence holds and has computed, which blocks are shared, in which order they are reused, what is
published, what flies.
"""

from collections.abc import Mapping
from typing import Any

from nanofn.request import BlockId, SequenceId, TokenId
from nanofn.state.engine_state import EngineState
from nanofn.state.persistent import sorted_items
from nanofn.state.sequence import Sequence

Tokens = Mapping[SequenceId, tuple[TokenId, ...]]


def fingerprint(
    state: EngineState, tokens: Tokens, memory: Mapping[tuple[int, int], Any], *, keeps_order: bool, max_steps: int = 0
) -> tuple[Any, ...]:
    """Reduce a state to what matters.

    Args:
        state: The state.
        tokens: Each live sequence's known tokens.
        memory: What each slot holds.
        keeps_order: Whether the order of arrival and of admission matters. It does to a policy; not if anything may be
            decided, and then sequences count as a multiset.
        max_steps: `steps_since_output` is told apart up to here.
    """
    running, waiting = list(state.running), list(state.waiting.values())
    if not keeps_order:
        running.sort(key=lambda each: _facts(each, state, tokens, max_steps))
        waiting.sort(key=lambda each: _facts(each, state, tokens, max_steps))
    live = [*running, *waiting]
    arrival = sorted([each.sequence_id for each in live]) if keeps_order else [each.sequence_id for each in live]
    rank = {sequence_id: place for place, sequence_id in enumerate(arrival)}
    requests = {each.request.request_id: rank[each.sequence_id] for each in reversed(live)}
    blocks: dict[BlockId, int] = {}
    for each in running:
        for block in each.block_table:
            blocks.setdefault(block, len(blocks))
    for block, _ in state.pool.cached.values():
        blocks.setdefault(block, len(blocks))
    sequences = [
        (rank[each.sequence_id], requests[each.request.request_id], _facts(each, state, tokens, max_steps))
        for each in live
    ]
    tables = [tuple([blocks[block] for block in each.block_table]) for each in running]
    holders = [tuple([blocks[block] for block in held]) for _, held in sorted_items(state.prefix_index.holders)]
    contents = sorted([(blocks[slot[0]], slot[1], prefix) for slot, prefix in memory.items() if slot[0] in blocks])  # type: ignore[index]
    return (
        tuple(sequences),
        tuple(tables),
        tuple([blocks[block] for block, _ in state.pool.cached.values()]),
        tuple(sorted(holders)),
        tuple(contents),
        tuple([_plan(state, place, rank) for place in range(len(state.in_flight))]),
        state.running.steady is not None,
    )


def _facts(each: Sequence, state: EngineState, tokens: Tokens, max_steps: int) -> tuple[Any, ...]:
    request = each.request
    return (
        tokens[each.sequence_id],
        each.num_computed_tokens,
        each.max_num_tokens,
        each.num_prompt_tokens,
        request.min_tokens,
        request.stop_token_ids,
        request.cache_keys,
        request.reads_prefix_cache,
        request.plans_ahead,
        each.child,
        each.first_output_us is None,
        min(state.num_steps - each.last_output_step, max_steps),
    )


def _plan(state: EngineState, place: int, rank: Mapping[SequenceId, int]) -> tuple[Any, ...]:
    """A plan in flight: whose tokens, and whether they still count."""
    epochs = dict(zip(state.running.columns.sequence_id, state.running.columns.epoch, strict=True))
    entries = state.in_flight[place].entries
    alive = [
        (rank[key], epochs.get(key) == epoch, first, count, samples)
        for key, epoch, first, count, samples in zip(
            entries.sequence_id, entries.epoch, entries.first_position, entries.num_tokens, entries.samples, strict=True
        )
        if key in rank
    ]
    dead = sum(samples for key, samples in zip(entries.sequence_id, entries.samples, strict=True) if key not in rank)
    return tuple(alive), dead
