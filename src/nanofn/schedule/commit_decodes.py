"""commit_decodes: the leading decodes of a plan, all at once.

What `plan_decodes` is to `plan`, this is to `commit`: entries that decoded one token of a running sequence, from the
first on, are committed on whole columns, the others one by one. A test holds the two ways equal.
"""

from collections.abc import Callable
from operator import attrgetter, contains, eq, or_, sub
from typing import NamedTuple, cast

from nanofn.config import Limits
from nanofn.request import BlockId, SequenceId, TokenId
from nanofn.schedule.ending import ending
from nanofn.state.chunked import Chunked
from nanofn.state.digest import Digest, grown
from nanofn.state.effects import Finished
from nanofn.state.engine_state import EngineState
from nanofn.state.prefix_index import PrefixIndex, publish
from nanofn.state.running import Columns, Running
from nanofn.state.step_plan import PlanEntries
from nanofn.state.tails import Tails, lengthened

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
    columns, limits, index, number = state.running.columns, state.limits, state.prefix_index, len(places)
    if not number:
        return Committed(state.running, index, (), (), (), ())
    tokens = cast("tuple[TokenId, ...]", token_ids[:number])  # each of these entries samples
    decoded = columns.take(places)
    num_tokens = tuple([count + 1 for count in decoded.num_tokens])
    chains, tails = decoded.chain, decoded.tail
    if limits.enable_prefix_caching:

        def places_with(num_rest: int, block_size: int) -> tuple[int, ...]:
            return tuple([place for place, count in enumerate(num_tokens) if (count - num_rest) % block_size == 0])

        chains, tails = digested(decoded, tokens, places_with, limits)
        # The position just written is the one before the token just sampled.
        written = places_with(1, limits.block_size)
        index = publish(index, last_blocks(decoded, written, limits.block_size))
    decoded = decoded.with_tokens(num_tokens, (now_us, state.num_steps), (chains, tails))
    running = Running(columns.put(places, decoded))
    return Committed(running, index, decoded.sequence_id, tokens, num_tokens, ended(decoded, tokens))


def _leading(running: Running, entries: PlanEntries) -> range | list[int]:
    """Find the places of the sequences of the leading decodes."""
    places = running.places(entries.sequence_id)
    part, number = running.columns.take(places), len(places)
    steps = tuple(map(sub, part.num_tokens, entries.first_position))
    found = steps, entries.epoch[:number], entries.num_tokens[:number]
    expected = (1,) * number, part.epoch, (1,) * number
    if found == expected and None not in part.first_output_us:
        return places
    pairs = zip(zip(*found, strict=True), zip(*expected, strict=True), part.first_output_us, strict=True)
    return places[: [one == other and first is not None for one, other, first in pairs].index(False)]


def digested(
    columns: Columns,
    tokens: tuple[TokenId, ...],
    places_with: Callable[[int, int], tuple[int, ...]],
    limits: Limits,
) -> tuple[tuple[Chunked[Digest], ...], Tails]:
    """Append a token to each tail, and digest the blocks that are full.

    Args:
        columns: The sequences before they get their tokens.
        tokens: Their tokens.
        places_with: Finds those that have, with their tokens, so many beyond full blocks.
        limits: The bounds.

    Returns:
        The columns of chains and of tails.
    """
    tails = lengthened(columns.tail, tokens, limits.block_size)
    full = places_with(0, limits.block_size)
    if not full:
        return columns.chain, tails
    chains, requests = list(columns.chain), columns.request
    for place, block in zip(full, tails.blocks(full), strict=True):
        chains[place] = grown(chains[place], block, requests[place], limits.digest_key)
    return tuple(chains), tails


def last_blocks(columns: Columns, places: tuple[int, ...], block_size: int) -> list[tuple[BlockId, Digest]]:
    """List the last full blocks of some sequences, each with its digest, which is the last one of the chain."""
    tables, counts, chains = columns.block_table, columns.num_tokens, columns.chain
    # A table may be longer: with two plans in flight the next step's block is in it.
    blocks = [(tables[place][counts[place] // block_size - 1], chains[place].last) for place in places]
    return cast("list[tuple[BlockId, Digest]]", blocks)


def ended(columns: Columns, tokens: tuple[TokenId, ...]) -> tuple[Finished, ...]:
    """Decide who ends with the token just got: by a stop token, or at the final length."""
    stopped = map(contains, map(_stop_token_ids, columns.request), tokens)
    longest = map(eq, columns.num_tokens, columns.max_num_tokens)
    places = [place for place, may_end in enumerate(map(or_, stopped, longest)) if may_end]
    decided = [ending(columns.at(place), tokens[place]) for place in places]
    return tuple([each for each in decided if each is not None])
