"""fingerprint: one key for all states that differ only in names.

Sequences, rows, blocks and plans lose their numbers; times, finished steps and finished requests are forgotten. What a later
step can depend on stays: what each sequence holds and has computed, which blocks are shared, in which order they are reused,
what is published, what flies, and what lies in every block that can still be read.
"""

from collections.abc import Mapping
from typing import Any

from nanofn.request import BlockId, SequenceId
from nanofn.state.engine_state import EngineState
from nanofn.state.persistent import sorted_items
from nanofn.state.sequence import Sequence

Facts = tuple[Any, ...]


def facts_for_core(each: Sequence, tokens: tuple[int, ...]) -> Facts:
    """Tell what the core can tell sequences apart by.

    Where a prompt ends and the output begins matters only to `min_tokens` and as whether there is any output yet.
    """
    request = each.request
    return (
        tokens,
        each.num_computed_tokens,
        each.max_num_tokens,
        each.num_prompt_tokens if request.min_tokens else each.num_output_tokens > 0,
        request.min_tokens,
        request.stop_token_ids,
        request.cache_keys,
        request.reads_prefix_cache,
        each.child,
    )


def fingerprint(
    state: EngineState,
    facts: Mapping[SequenceId, Facts],
    memory: Mapping[tuple[int, int], Any],
    *,
    keeps_order: bool,
) -> tuple[Any, ...]:
    """Reduce a state to what matters.

    Args:
        state: The state.
        facts: What each live sequence is told apart by, in types that can be ordered.
        memory: What each (block, offset) holds, where that is known.
        keeps_order: Whether the order of arrival and of admission matters. It does to a policy; not if anything may be
            decided, and then sequences count as a multiset.
    """
    running, waiting = list(state.running), list(state.waiting.values())
    if not keeps_order:
        if len(running) > 1:
            running.sort(key=lambda each: facts[each.sequence_id])
        if len(waiting) > 1:
            waiting.sort(key=lambda each: facts[each.sequence_id])
    live = [*running, *waiting]
    arrival = sorted(facts) if keeps_order else [each.sequence_id for each in live]
    rank = {sequence_id: place for place, sequence_id in enumerate(arrival)}
    requests = {each.request.request_id: rank[each.sequence_id] for each in reversed(live)}
    blocks = _names(running, state)
    return (
        len(running),
        tuple([(rank[each.sequence_id], requests[each.request.request_id], facts[each.sequence_id]) for each in live]),
        tuple([tuple([blocks[block] for block in each.block_table]) for each in running]),
        len(state.pool.cached),
        _published(state, blocks),
        tuple(sorted([(blocks[key[0]], key[1], held) for key, held in memory.items() if key[0] in blocks])),  # type: ignore[index]
        _plans(state, rank) if state.in_flight else (),
        state.running.steady is not None,
    )


def _names(running: list[Sequence], state: EngineState) -> dict[BlockId, int]:
    """Number blocks by where they are: first along the tables, then along the free cached ones as they are reused."""
    blocks: dict[BlockId, int] = {}
    for each in running:
        for block in each.block_table:
            blocks.setdefault(block, len(blocks))
    for block, _ in state.pool.cached.values():
        blocks.setdefault(block, len(blocks))
    return blocks


def _published(state: EngineState, blocks: Mapping[BlockId, int]) -> Facts:
    if not len(state.prefix_index.holders):
        return ()
    holders = [tuple([blocks[block] for block in held]) for _, held in sorted_items(state.prefix_index.holders)]
    return tuple(sorted(holders))


def _plans(state: EngineState, rank: Mapping[SequenceId, int]) -> Facts:
    """Tell of each plan in flight whose tokens it computes, which of them still count, and what the ended would sample."""
    epochs = dict(zip(state.running.columns.sequence_id, state.running.columns.epoch, strict=True))
    found = []
    for step_plan in state.in_flight:
        entries = step_plan.entries
        columns = entries.sequence_id, entries.epoch, entries.first_position, entries.num_tokens, entries.samples
        found.append(
            tuple(
                [
                    (rank[key], epochs.get(key) == epoch, first, count, samples) if key in rank else samples
                    for key, epoch, first, count, samples in zip(*columns, strict=True)
                ]
            )
        )
    return tuple(found)
