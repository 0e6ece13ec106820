"""commit_decodes: the leading decodes of a plan, all at once.

What `plan_decodes` is to `plan`, this is to `commit`: entries that decoded one token of a running sequence, from the
first on, are committed on whole columns, the others one by one. A test holds the two ways equal.
"""

from operator import attrgetter, contains, eq, or_, sub
from typing import NamedTuple, cast

from nanofn.config import Limits
from nanofn.request import BlockId, SequenceId, TokenId
from nanofn.schedule.ending import ending
from nanofn.state.chunked import Chunked
from nanofn.state.digest import MAX_NESTING, Digest, Tail, grown
from nanofn.state.effects import Finished
from nanofn.state.engine_state import EngineState
from nanofn.state.prefix_index import PrefixIndex, publish
from nanofn.state.running import Running
from nanofn.state.steady import Steady
from nanofn.state.step_plan import PlanEntries

_stop_token_ids = attrgetter("stop_token_ids")


class Committed(NamedTuple):
    """What some results make of a state.

    Attributes:
        running: The running sequences after them, those that end included.
        prefix_index: The prefix index after them.
        sequence_ids: Whose tokens were accepted.
        token_ids: Their tokens.
        num_tokens: Their numbers of known tokens, these included.
        endings: Who ends.
    """

    running: Running
    prefix_index: PrefixIndex
    sequence_ids: tuple[SequenceId, ...]
    token_ids: tuple[TokenId, ...]
    num_tokens: tuple[int, ...]
    endings: tuple[Finished, ...]


def commit_decodes(
    state: EngineState, entries: PlanEntries, token_ids: tuple[TokenId | None, ...], now_us: int
) -> Committed:
    """Commit the token of each entry, from the first on, as long as each decoded one token of a running sequence.

    The run of entries ends before one whose sequence does not run, runs in another epoch, expects another position,
    computed more than one token, or has had no output token before.
    """
    places = _leading(state.running, entries)
    number = len(places)
    if not number:
        return Committed(state.running, state.prefix_index, (), (), (), ())
    tokens = cast("tuple[TokenId, ...]", token_ids[:number])  # each of these entries samples
    part, index = _with_tokens(state, state.running.take(places), tokens, now_us)
    running, endings = state.running.put(places, part), _endings(part, tokens)
    return Committed(running, index, part.sequence_id, tokens, part.num_tokens, endings)


def commit_steady(
    state: EngineState, steady: Steady, entries: PlanEntries, token_ids: tuple[TokenId, ...], now_us: int
) -> Committed:
    """Commit a token of every running sequence, for a plan of which the memo says that it decodes just that."""
    running = state.running
    if len(token_ids) != len(running.sequence_id):
        alive = frozenset(running.sequence_id)
        pairs = zip(entries.sequence_id, token_ids, strict=True)
        token_ids = tuple([token_id for sequence_id, token_id in pairs if sequence_id in alive])
    running, index = _with_tokens(state, running, token_ids, now_us)
    place = steady.first_to_end
    endings: tuple[Finished, ...] = ()
    if running.num_tokens[place] == running.max_num_tokens[place] or not steady.cohort.stop_token_ids.isdisjoint(
        token_ids
    ):
        endings = _endings(running, token_ids)
    return Committed(running, index, running.sequence_id, token_ids, running.num_tokens, endings)


def _with_tokens(
    state: EngineState, decoded: Running, tokens: tuple[TokenId, ...], now_us: int
) -> tuple[Running, PrefixIndex]:
    """Append a token to each sequence; publish the blocks just written."""
    index, steady, limits, digested = state.prefix_index, decoded.steady, state.limits, (decoded.chain, decoded.tail)
    num_tokens = tuple([count + 1 for count in decoded.num_tokens])
    if limits.enable_prefix_caching:
        digested = _digested(decoded, tuple(zip(decoded.tail, tokens, strict=True)), limits)
        # Those without tokens beyond full blocks before now: the position just written was the last of a block.
        written = decoded.places_with(0, limits.block_size)
        if written:
            index = publish(index, _last_blocks(decoded, digested[0], written, limits.block_size))
    if steady is not None:
        steady = steady.committed()
    return decoded.with_tokens(num_tokens, (now_us, state.num_steps), digested, steady), index


def _leading(running: Running, entries: PlanEntries) -> range | list[int]:
    """Find the places of the sequences of the leading decodes."""
    places = running.places(entries.sequence_id)
    part, number = running.take(places), len(places)
    steps = tuple(map(sub, part.num_tokens, entries.first_position))
    found = steps, entries.epoch[:number], entries.num_tokens[:number]
    expected = (1,) * number, part.epoch, (1,) * number
    if found == expected and None not in part.first_output_us:
        return places
    pairs = zip(zip(*found, strict=True), zip(*expected, strict=True), part.first_output_us, strict=True)
    return places[: [one == other and first is not None for one, other, first in pairs].index(False)]


def _digested(
    decoded: Running, tails: tuple[Tail, ...], limits: Limits
) -> tuple[tuple[Chunked[Digest], ...], tuple[Tail, ...]]:
    """Digest the tails that are full with their new token, and pack those that are nested deep."""
    due = [
        (place, num_rest)
        for num_rest in range(0, limits.block_size, MAX_NESTING)
        for place in decoded.places_with(num_rest - 1, limits.block_size)
    ]
    if not due:
        return decoded.chain, tails
    chains, packed = list(decoded.chain), list(tails)
    for place, num_rest in due:
        chains[place], packed[place] = grown(chains[place], tails[place], decoded.request[place], num_rest, limits)
    return tuple(chains), tuple(packed)


def _last_blocks(
    decoded: Running, chains: tuple[Chunked[Digest], ...], places: tuple[int, ...], block_size: int
) -> list[tuple[BlockId, Digest]]:
    """List the last full blocks of some sequences with their digests."""
    blocks = [decoded.num_tokens[place] // block_size - 1 for place in places]
    tables = decoded.block_table
    return [(tables[place][block], chains[place][block]) for place, block in zip(places, blocks, strict=True)]


def _endings(decoded: Running, tokens: tuple[TokenId, ...]) -> tuple[Finished, ...]:
    """Decide who ends: those with a stop token, and those at their final length."""
    stopped = map(contains, map(_stop_token_ids, decoded.request), tokens)
    longest = map(eq, decoded.num_tokens, decoded.max_num_tokens)
    decided = [ending(decoded[place], tokens[place]) for place, may in enumerate(map(or_, stopped, longest)) if may]
    return tuple([each for each in decided if each is not None])
