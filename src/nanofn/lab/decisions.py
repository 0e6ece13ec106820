"""decisions: everything that a policy could wish for in a state, at a stated scope."""

from collections.abc import Iterator
from itertools import chain, combinations, permutations, product

from nanofn.request import SequenceId
from nanofn.state.decision import Decision
from nanofn.state.engine_state import EngineState
from nanofn.state.sequence import Sequence

Ids = tuple[SequenceId, ...]
ALL = 1 << 20
"""A grant of all that remains."""


def decisions(state: EngineState, max_grants: int) -> Iterator[Decision]:
    """List decisions: who is preempted, each order of up to `max_grants` others, each with each number of tokens.

    Victims besides the default, and skipping, are tried where they could matter: some running one is granted and blocks
    may be short, more than one waits. One sequence is shed while all others get everything. A decision that names
    nobody stands for all that name only the dead, and one that names nobody twice for those that do. Of waiting
    sequences that are alike in all but their number only the first to arrive is named first.
    """
    running, waiting = list(state.running), list(state.waiting.values())
    ids = state.running.sequence_id
    twins = _twins(state, waiting)
    for preempt in _subsets(ids):
        live = [each for each in (*running, *waiting) if each.sequence_id not in preempt]
        for size in range(min(max_grants, len(live)) + 1):
            for order in permutations(live, size):
                named = [each.sequence_id for each in order]
                if all(twins[each] in named[:place] for place, each in enumerate(named) if each in twins):
                    for victims, skip_blocked in product(_victims(state, order), _skips(order)):
                        yield from _with_counts(state, order, preempt, victims, skip_blocked=skip_blocked)
    for shed in (*ids, *[each.sequence_id for each in waiting]):
        rest = tuple([(each.sequence_id, ALL) for each in (*running, *waiting) if each.sequence_id != shed])
        yield Decision(rest, shed=(shed,))


def _subsets(ids: Ids) -> Iterator[Ids]:
    return chain.from_iterable(combinations(ids, size) for size in range(len(ids) + 1))


def _with_counts(
    state: EngineState, order: tuple[Sequence, ...], preempt: Ids, victims: Ids | None, *, skip_blocked: bool
) -> Iterator[Decision]:
    budget = state.limits.max_num_batched_tokens
    ranges = [range(1, max(min(each.num_remaining_tokens, budget), 1) + 1) for each in order]
    for counts in product(*ranges):
        grants = tuple([(each.sequence_id, count) for each, count in zip(order, counts, strict=True)])
        yield Decision(grants, preempt=preempt, victims=victims, skip_blocked=skip_blocked)


def _victims(state: EngineState, order: tuple[Sequence, ...]) -> Iterator[Ids | None]:
    """List who could yield: the default, and where a running grant may lack blocks nobody, or all in any other order."""
    yield None
    runs = any(each.row is not None for each in order)
    most = sum([1 + each.num_remaining_tokens // state.limits.block_size for each in order])
    if runs and most > state.pool.num_free and len(state.running) > 1:
        yield ()
        yield from permutations(state.running.sequence_id)


def _skips(order: tuple[Sequence, ...]) -> tuple[bool, ...]:
    return (False, True) if sum([each.row is None for each in order]) > 1 else (False,)


def _twins(state: EngineState, waiting: list[Sequence]) -> dict[SequenceId, SequenceId]:
    """Map each waiting sequence to the one before it that is alike in all but number and request id, if there is one.

    Tokens are compared by their digests; without prefix caching all of a scope's tokens but their number are alike to
    the core. What a plan in flight names is like nothing else.
    """
    found: dict[SequenceId, SequenceId] = {}
    last: dict[object, SequenceId] = {}
    in_flight = {key for step_plan in state.in_flight for key in step_plan.entries.sequence_id}
    for each in waiting:
        if each.sequence_id in in_flight or each.request.n > 1:
            continue
        request = each.request
        facts = (request.stop_token_ids, request.cache_keys, request.reads_prefix_cache)
        alike = (each.num_prompt_tokens, each.num_tokens, each.max_num_tokens, each.chain, each.tail, *facts)
        if alike in last:
            found[each.sequence_id] = last[alike]
        last[alike] = each.sequence_id
    return found
