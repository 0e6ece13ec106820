"""violations: what must hold of every state. Slow on purpose: it recounts everything and trusts nothing.

The ids are those of `docs/invariants.md`.
"""

from collections import Counter
from collections.abc import Callable, Iterator

from attrs import frozen

from nanofn.config import blocks_for
from nanofn.request import BlockId, SequenceId
from nanofn.state.digest import TOKEN_BYTES, Digest
from nanofn.state.engine_state import EngineState
from nanofn.state.persistent import sorted_items
from nanofn.state.sequence import Sequence


@frozen
class Finding:
    """One broken rule.

    Attributes:
        invariant: Its id in `docs/invariants.md`.
        detail: What was found, with the numbers.
    """

    invariant: str
    detail: str


def violations(state: EngineState) -> tuple[Finding, ...]:
    """Check every state invariant; an empty tuple means that all hold."""
    return tuple([Finding(name, detail) for name, check in _CHECKS for detail in check(state)])


def live(state: EngineState) -> tuple[Sequence, ...]:
    """List the live sequences, running ones first."""
    return (*state.running, *state.waiting.values())


def published(state: EngineState) -> dict[BlockId, Digest]:
    """Each published block's digest: the inverse of the index's holders."""
    return {block_id: digest for digest, holders in sorted_items(state.prefix_index.holders) for block_id in holders}


def _references(state: EngineState) -> Counter[BlockId]:
    return Counter([block_id for table in state.running.columns.block_table for block_id in table])


def _reference_counts(state: EngineState) -> Iterator[str]:
    counts = _references(state)
    for block_id, count in sorted(counts.items()):
        if (state.pool.shared.get(block_id) or 1) != count:
            yield f"block {block_id} is in {count} tables, counted {state.pool.shared.get(block_id) or 1}"
    for block_id, count in sorted_items(state.pool.shared):
        if count < 2 or block_id not in counts:
            yield f"block {block_id} is counted as shared {count} times, it is in {counts[block_id]} tables"


def _partition(state: EngineState) -> Iterator[str]:
    pool = state.pool
    free = [*pool.returned, *range(pool.frontier, pool.num_blocks), *[block_id for block_id, _ in pool.cached.values()]]
    held = set(_references(state))
    if sorted([*free, *held]) != list(range(pool.num_blocks)):
        yield f"free {sorted(free)} and held {sorted(held)} do not part the {pool.num_blocks} blocks"
    if pool.num_free != len(free):
        yield f"{len(free)} blocks are free, num_free says {pool.num_free}"
    if any(block_id >= pool.frontier for block_id in held):
        yield f"a held block of {sorted(held)} lies beyond the frontier {pool.frontier}"


def _no_repeats(state: EngineState) -> Iterator[str]:
    for sequence in state.running:
        table = tuple(sequence.block_table)
        if len(set(table)) != len(table):
            yield f"the table of sequence {sequence.sequence_id} has a block twice: {table}"


def _shared_blocks_agree(state: EngineState) -> Iterator[str]:
    owners: dict[BlockId, list[tuple[Sequence, int]]] = {}
    digests = published(state)
    for sequence in state.running:
        for place, block_id in enumerate(sequence.block_table):
            owners.setdefault(block_id, []).append((sequence, place))
    for block_id, places in sorted(owners.items()):
        if len(places) > 1:
            names = {sequence.chain[place] if place < len(sequence.chain) else None for sequence, place in places}
            if names != {digests.get(block_id)} or None in names:
                yield f"block {block_id} is shared by sequences that do not all have its prefix"


def _digests_name_contents(state: EngineState) -> Iterator[str]:
    digests = published(state)
    for sequence in state.running:
        is_published = True
        for place, block_id in enumerate(sequence.block_table):
            digest = digests.get(block_id)
            if digest is not None and (place >= len(sequence.chain) or sequence.chain[place] != digest):
                yield f"block {block_id} of sequence {sequence.sequence_id} is published under another prefix"
            if digest is not None and not is_published:
                yield f"block {block_id} of sequence {sequence.sequence_id} is published, the one before it is not"
            is_published = digest is not None


def _table_lengths(state: EngineState) -> Iterator[str]:
    for sequence in live(state):
        needed = blocks_for(sequence.num_computed_tokens, state.limits.block_size)
        if len(sequence.block_table) != needed:
            yield f"sequence {sequence.sequence_id} holds {len(sequence.block_table)} blocks and needs {needed}"
    for key, sequence in state.waiting:
        if sequence.num_computed_tokens or sequence.row is not None or key != sequence.sequence_id:
            yield f"waiting sequence {sequence.sequence_id} has a row or computed tokens"


def _one_place_each(state: EngineState) -> Iterator[str]:
    ids = [sequence.sequence_id for sequence in live(state)]
    if len(set(ids)) != len(ids):
        yield f"a sequence is in two places: {sorted(ids)}"
    rows = [*state.running.columns.row, *state.rows]
    if sorted(rows) != list(range(state.limits.max_num_seqs)):
        yield f"rows {sorted(rows)} are not the {state.limits.max_num_seqs} there are, once each"
    by_request: dict[int, list[SequenceId]] = {}
    for sequence in live(state):
        by_request.setdefault(sequence.request.request_id, []).append(sequence.sequence_id)
    expected = {key: tuple(sorted(children)) for key, children in by_request.items()}
    if dict(sorted_items(state.by_request)) != expected:
        yield f"by_request is {dict(sorted_items(state.by_request))}, the live sequences give {expected}"


def _placeholders_are_in_flight(state: EngineState) -> Iterator[str]:
    sampled: Counter[tuple[SequenceId, int]] = Counter()
    for step_plan in state.in_flight:
        for entry in step_plan.entries:
            sampled[entry.sequence_id, entry.epoch] += entry.samples
    for sequence in live(state):
        due = sampled[sequence.sequence_id, sequence.epoch]
        if sequence.num_placeholders != due:
            yield f"sequence {sequence.sequence_id} has {sequence.num_placeholders} placeholders, {due} are in flight"


def _lengths(state: EngineState) -> Iterator[str]:
    for sequence in live(state):
        limit = min(sequence.request.num_prompt_tokens + sequence.request.max_tokens, state.limits.max_model_len)
        if sequence.num_prompt_tokens != sequence.request.num_prompt_tokens:
            yield f"sequence {sequence.sequence_id} has another prompt length than its request"
        if sequence.max_num_tokens != limit:
            yield f"sequence {sequence.sequence_id} may grow to {sequence.max_num_tokens}, allowed are {limit}"
        if not sequence.request.num_prompt_tokens <= sequence.num_tokens < limit:
            yield f"live sequence {sequence.sequence_id} has {sequence.num_tokens} tokens of at most {limit - 1}"
        if sequence.num_computed_tokens >= limit:
            yield f"sequence {sequence.sequence_id} computes {sequence.num_computed_tokens} of {limit} tokens"


def _holders_hold_one_prefix(state: EngineState) -> Iterator[str]:
    seen: set[BlockId] = set()
    for digest, holders in sorted_items(state.prefix_index.holders):
        if not holders or len(set(holders)) != len(holders) or seen & set(holders):
            yield f"{digest.hex()} is held by {holders}, of which {sorted(seen & set(holders))} hold another prefix"
        seen |= set(holders)


def _cached_blocks_are_published(state: EngineState) -> Iterator[str]:
    pool, digests = state.pool, published(state)
    if any(pool.stamps.get(block_id) != stamp for stamp, (block_id, _) in pool.cached):
        yield "stamps do not lead to the cached blocks"
    if any(stamp >= pool.next_stamp for _, stamp in sorted_items(pool.stamps)):
        yield f"a stamp was not given yet: the next one is {pool.next_stamp}"
    if any(digests.get(block_id) != digest for block_id, digest in pool.cached.values()):
        yield "a cached block is not published under its digest"
    held = set(_references(state))
    free = {block_id for block_id, _ in pool.cached.values()}
    if any(block_id not in held | free for block_id in digests):
        yield "a published block is neither held nor cached"


def _chains_cover_known_tokens(state: EngineState) -> Iterator[str]:
    for sequence in live(state):
        full, rest = divmod(sequence.num_tokens, state.limits.block_size)
        expected = (full, rest * TOKEN_BYTES) if state.limits.enable_prefix_caching else (0, 0)
        found = len(sequence.chain), len(sequence.tail)
        if found != expected:
            yield f"sequence {sequence.sequence_id} has a chain of {found[0]} blocks and a tail of {found[1]} bytes"


def _plans_are_in_order(state: EngineState) -> Iterator[str]:
    ids = [step_plan.plan_id for step_plan in state.in_flight]
    if None in ids or ids != sorted(set(ids), key=lambda plan_id: plan_id or 0):
        yield f"plans in flight are {ids}"
    if any(not step_plan.entries for step_plan in state.in_flight):
        yield "an empty plan is in flight"


def _memo_says_what_is_so(state: EngineState) -> Iterator[str]:
    columns, steady, size = state.running.columns, state.running.steady, state.limits.block_size
    if steady is None:
        return
    cohort, ids = steady.cohort, columns.sequence_id
    if cohort.grants != tuple([(sequence_id, 1) for sequence_id in ids]):
        yield f"the memo grants {cohort.grants}, running are {ids}"
    left = [most - count for most, count in zip(columns.max_num_tokens, columns.num_tokens, strict=True)]
    if left[cohort.first_to_end] != min(left):
        yield f"place {cohort.first_to_end} is not the first to end of {left}"
    needs = {token_id for request in columns.request for token_id in request.stop_token_ids}
    if not needs <= cohort.stop_token_ids:
        yield "the memo overlooks a stop token"
    for rest in range(size):
        places = tuple([place for place, count in enumerate(columns.num_tokens) if count % size == rest])
        if steady.places_with(rest, size) != places:
            yield f"the memo has {steady.places_with(rest, size)} at {rest} beyond full blocks, it is {places}"
    in_flight = tuple([step_plan.plan_id for step_plan in state.in_flight])
    if steady.plans != in_flight:
        yield f"the memo knows of plans {steady.plans}, in flight are {in_flight}"
    alive = {sequence.sequence_id for sequence in live(state)}
    for plan_id in steady.plans:
        entries = [plan.entries for plan in state.in_flight if plan.plan_id == plan_id]
        decoded = [[key for key in each.sequence_id if key in alive] for each in entries if set(each.num_tokens) == {1}]
        if decoded != [list(ids)] or not all(entries[0].samples):
            yield f"plan {plan_id} decodes {decoded}, the memo says {ids}"
    if any(
        computed - known != len(steady.plans) - 1
        for known, computed in zip(columns.num_tokens, columns.num_computed_tokens, strict=True)
    ):
        yield f"the memo counts {len(steady.plans)} placeholders, not all have as many"


_CHECKS: tuple[tuple[str, Callable[[EngineState], Iterator[str]]], ...] = (
    ("inv1", _reference_counts),
    ("inv2", _partition),
    ("inv3", _no_repeats),
    ("inv5", _shared_blocks_agree),
    ("inv7", _table_lengths),
    ("inv8", _one_place_each),
    ("inv9", _placeholders_are_in_flight),
    ("inv10", _lengths),
    ("inv11", _holders_hold_one_prefix),
    ("inv11", _cached_blocks_are_published),
    ("inv12", _chains_cover_known_tokens),
    ("inv13", _digests_name_contents),
    ("inv55", _memo_says_what_is_so),
    ("inv56", _plans_are_in_order),
)
