"""Block digests: a chain of keyed 128-bit hashes over whole blocks of token ids, exact by typed extra keys.

A digest names a full prefix, not a block alone: each one hashes its parent's digest with the block's tokens, and
the first one's parent covers the request's cache keys. 128 bits under a secret key leave no collision to check for.
"""

from collections.abc import Sequence
from hashlib import blake2b
from struct import pack
from typing import NewType

from nanofn.request import Request, TokenId
from nanofn.state.chunked import Chunked

Digest = NewType("Digest", bytes)

_DIGEST_BYTES = 16
TOKEN_BYTES = 4


def token_bytes(token_ids: Sequence[TokenId]) -> bytes:
    """Pack token ids, four little-endian bytes each."""
    return pack(f"<{len(token_ids)}I", *token_ids)


def root_digest(request: Request, digest_key: bytes) -> Digest:
    """Digest that stands before a request's first block.

    The cache keys enter by `repr` of typed (kind, value) pairs, so that ("salt", "x") and ("adapter", "x") differ.
    """
    return Digest(blake2b(repr(request.cache_keys).encode(), digest_size=_DIGEST_BYTES, key=digest_key).digest())


def next_digest(parent: Digest, block: bytes, digest_key: bytes) -> Digest:
    """Digest of the prefix that `parent` names followed by one full block of packed token ids."""
    return Digest(blake2b(parent + block, digest_size=_DIGEST_BYTES, key=digest_key).digest())


def prompt_chain(request: Request, block_size: int, digest_key: bytes) -> tuple[Chunked[Digest], bytes]:
    """Digest every full block of a prompt.

    Returns:
        The digests in order, and the packed token ids after the last full block.
    """
    tokens = token_bytes(request.prompt_token_ids)
    stride = block_size * TOKEN_BYTES
    full = len(tokens) - len(tokens) % stride
    digest, digests = root_digest(request, digest_key), []
    for start in range(0, full, stride):
        digest = next_digest(digest, tokens[start : start + stride], digest_key)
        digests.append(digest)
    return Chunked[Digest]().extend(digests), tokens[full:]


def grown(chain: Chunked[Digest], block: bytes, request: Request, digest_key: bytes) -> Chunked[Digest]:
    """Add the digest of a request's next full block to its chain."""
    parent = chain.last or root_digest(request, digest_key)
    return chain.push(next_digest(parent, block, digest_key))
