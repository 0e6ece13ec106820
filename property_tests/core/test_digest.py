"""Digests name whole prefixes exactly: equal keys and tokens, equal digests; anything else, other digests."""

from hypothesis import given, strategies as st

from core.build import request
from nanofn.config import Limits
from nanofn.state.digest import (
    MAX_NESTING,
    TOKEN_BYTES,
    grown,
    next_digest,
    packed,
    prompt_chain,
    root_digest,
    token_bytes,
)

TOKENS = st.lists(st.integers(0, 3), max_size=20)


@given(TOKENS, TOKENS, st.integers(1, 5))
def test_chains_agree_exactly_on_the_common_blocks(one, other, block_size) -> None:
    """Two prompts' digests are equal up to the last block that both begin with, and nowhere after."""
    chains = [tuple(prompt_chain(request(0, prompt), block_size, b"key")[0]) for prompt in (one, other)]
    for index, pair in enumerate(zip(*chains, strict=False)):
        end = (index + 1) * block_size
        assert (pair[0] == pair[1]) == (one[:end] == other[:end])


@given(TOKENS, st.integers(1, 5))
def test_a_chain_grows_by_its_next_block(prompt, block_size) -> None:
    """Digest by digest gives the same chain as the prompt at once; the tail holds the rest."""
    asked = request(0, prompt)
    chain, tail = prompt_chain(asked, block_size, b"key")
    digest = root_digest(asked, b"key")
    for index, expected in enumerate(chain):
        digest = next_digest(digest, token_bytes(prompt[index * block_size : (index + 1) * block_size]), b"key")
        assert digest == expected
    assert len(chain) == len(prompt) // block_size
    assert tail == token_bytes(prompt[len(chain) * block_size :])
    assert len(tail) == TOKEN_BYTES * (len(prompt) % block_size)


def test_cache_keys_are_typed_and_exact() -> None:
    """Salt "x" and adapter "x" differ, none differs from empty, and text cannot imitate a second pair."""
    keys = [
        (),
        (("salt", ""),),
        (("salt", "x"),),
        (("adapter", "x"),),
        (("salt", "x"), ("adapter", "x")),
        (("salt", "x'), ('adapter', 'x"),),
    ]
    roots = {root_digest(request(0, 4, cache_keys=each), b"key") for each in keys}
    assert len(roots) == len(keys)


def test_the_key_of_the_digests_matters() -> None:
    """Without the key nobody can compute which prompts share a digest."""
    assert root_digest(request(0, 4), b"one") != root_digest(request(0, 4), b"two")
    assert next_digest(b"p" * 16, b"block", b"one") != next_digest(b"p" * 16, b"block", b"two")


def test_wide_token_ids_are_kept_whole() -> None:
    """Ids that agree in their low bits differ: nothing is truncated."""
    assert len({token_bytes([id_]) for id_ in (65, 321, 65 + 2**16, 65 + 2**24, 2**32 - 1)}) == 5


def test_a_tail_is_packed_only_where_it_is_full_or_deep() -> None:
    """A token more nests the tail and copies nothing; every 256 tokens it is packed, and at the end of a block digested."""
    bounds = Limits(1_024, 4, 1, 8, 1_024)
    chain, tail = prompt_chain(request(0, 1), 1_024, b"k")
    for number in range(2, 1_024):
        longer = (tail, number)
        chain, tail = grown(chain, longer, request(0, 1), number, bounds)
        assert (len(chain), len(packed(tail))) == (0, 4 * number)
        assert isinstance(tail, bytes) if number % MAX_NESTING == 0 else tail is longer
    chain, tail = grown(chain, (tail, 512), request(0, 1), 0, bounds)
    assert (len(chain), tail) == (1, b"")
