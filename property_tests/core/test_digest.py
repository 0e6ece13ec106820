"""Digests name whole prefixes exactly: equal keys and tokens, equal digests; anything else, other digests."""

from hypothesis import given, strategies as st

from core.build import request
from nanofn.state.chunked import Chunked
from nanofn.state.digest import TOKEN_BYTES, grown, next_digest, prompt_chain, root_digest, token_bytes

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


def test_digests_have_128_bits() -> None:
    """Enough that no collision need be looked for, and no more: a chain has one for each block."""
    assert len(root_digest(request(0, 4), b"key")) == len(next_digest(b"p" * 16, b"block", b"key")) == 16


def test_wide_token_ids_are_kept_whole() -> None:
    """Ids that agree in their low bits differ: nothing is truncated."""
    assert len({token_bytes([id_]) for id_ in (65, 321, 65 + 2**16, 65 + 2**24, 2**32 - 1)}) == 5


def test_a_chain_grows_by_a_block_as_a_prompt_has_it() -> None:
    """What is digested when a block is full is what a prompt with the same tokens has, from the first block on."""
    asked, chain = request(0, [1, 2, 3, 4, 5, 6]), Chunked()
    for block in ([1, 2], [3, 4], [5, 6]):
        chain = grown(chain, token_bytes(block), asked, b"key")
    assert chain == prompt_chain(asked, 2, b"key")[0]
