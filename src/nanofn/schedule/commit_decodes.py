"""commit_decodes: the leading decodes of a plan, all at once.

What `plan_decodes` is to `plan`, this is to `commit`: entries that decoded one token of a running sequence, from the
first on, are committed on whole columns, the others one by one. A test holds the two ways equal.
"""

from operator import attrgetter, contains, eq, sub
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
from nanofn.state.step_plan import PlanEntries

_stop_token_ids = attrgetter("stop_token_ids")


class Committed(NamedTuple):
    """What some results make of a state.

    Attributes:
        running: The running sequences after them, those that end included.
        prefix_index: The prefix index after them.
        sequence_ids: Whose tokens were accepted.
        token_ids: Their tokens.
        num_output_tokens: Their numbers of output tokens, these included.
        endings: Who ends.
    """

    running: Running
    prefix_index: PrefixIndex
    sequence_ids: tuple[SequenceId, ...]
    token_ids: tuple[TokenId, ...]
    num_output_tokens: tuple[int, ...]
    endings: tuple[Finished, ...]


def commit_decodes(
    state: EngineState, entries: PlanEntries, token_ids: tuple[TokenId | None, ...], now_us: int
) -> Committed:
    """Commit the token of each entry, from the first on, as long as each decoded one token of a running sequence.

    The run of entries ends before one whose sequence does not run, runs in another epoch, expects another position,
    computed more than one token, or has had no output token before.
    """
    places = _leading(state.running, entries)
    decoded, limits, index, number = state.running.take(places), state.limits, state.prefix_index, len(places)
    if not number:
        return Committed(state.running, index, (), (), (), ())
    tokens = cast("tuple[TokenId, ...]", token_ids[:number])  # each of these entries samples
    num_tokens = tuple([count + 1 for count in decoded.num_tokens])
    chains, tails = decoded.chain, decoded.tail
    if limits.enable_prefix_caching:
        rests = [count % limits.block_size for count in num_tokens]
        chains, tails = _digested(decoded, tuple(zip(tails, tokens, strict=True)), rests, limits)
        if 1 % limits.block_size in rests:
            index = publish(index, _written(decoded, chains, rests, limits.block_size))
    decoded = decoded.with_tokens(num_tokens, (now_us,) * number, (state.num_steps,) * number, chains, tails)
    outputs = tuple(map(sub, num_tokens, decoded.num_prompt_tokens))
    endings = _endings(decoded, tokens, outputs)
    return Committed(state.running.put(places, decoded), index, decoded.sequence_id, tokens, outputs, endings)


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
    decoded: Running, tails: tuple[Tail, ...], rests: list[int], limits: Limits
) -> tuple[tuple[Chunked[Digest], ...], tuple[Tail, ...]]:
    """Digest the tails that are full now, and pack those that are nested deep."""
    due = rests if limits.block_size <= MAX_NESTING else [rest % MAX_NESTING for rest in rests]
    if 0 not in due:
        return decoded.chain, tails
    chains, packed = list(decoded.chain), list(tails)
    for place, rest in enumerate(due):
        if rest == 0:
            chains[place], packed[place] = grown(
                chains[place], tails[place], decoded.request[place], rests[place], limits
            )
    return tuple(chains), tuple(packed)


def _written(
    decoded: Running, chains: tuple[Chunked[Digest], ...], rests: list[int], block_size: int
) -> list[tuple[BlockId, Digest]]:
    """List the blocks whose last position was just written: it is the one before the token just sampled."""
    places = [place for place, rest in enumerate(rests) if rest == 1 % block_size]
    blocks = [decoded.num_tokens[place] // block_size - 1 for place in places]
    tables = decoded.block_table
    return [(tables[place][block], chains[place][block]) for place, block in zip(places, blocks, strict=True)]


def _endings(decoded: Running, tokens: tuple[TokenId, ...], outputs: tuple[int, ...]) -> tuple[Finished, ...]:
    """Decide who ends. In most steps nobody does: neither a stop token nor a longest sequence is among them."""
    requests, longest = decoded.request, map(eq, decoded.num_tokens, decoded.max_num_tokens)
    if True not in longest and True not in map(contains, map(_stop_token_ids, requests), tokens):
        return ()
    columns = decoded.sequence_id, requests, tokens, outputs, decoded.num_tokens, decoded.max_num_tokens
    decided = [
        ending(sequence_id, request, token_id, count, is_longest=known == most)
        for sequence_id, request, token_id, count, known, most in zip(*columns, strict=True)
    ]
    return tuple([each for each in decided if each is not None])
