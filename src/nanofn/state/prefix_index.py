"""The prefix index: which blocks hold which prefix. A digest maps to every holder; the first one stays."""

from collections.abc import Iterable

from attrs import frozen

from nanofn.request import BlockId
from nanofn.state.chunked import Chunked
from nanofn.state.digest import Digest
from nanofn.state.persistent import Map


@frozen
class PrefixIndex:
    """Published blocks.

    Attributes:
        holders: Digest to the blocks that hold that prefix's last block, first publisher first. Never empty tuples.
        digests: Block to its digest: the inverse.
    """

    holders: Map[Digest, tuple[BlockId, ...]] = Map()
    digests: Map[BlockId, Digest] = Map()


def match(index: PrefixIndex, chain: Chunked[Digest], max_blocks: int) -> tuple[BlockId, ...]:
    """Find the longest published prefix of a digest chain, at most `max_blocks` long."""
    found: list[BlockId] = []
    if max_blocks > 0:
        get = index.holders.get
        for digest in chain:
            holders = get(digest)
            if holders is None:
                break
            found.append(holders[0])
            if len(found) == max_blocks:
                break
    return tuple(found)


def publish(index: PrefixIndex, blocks: Iterable[tuple[BlockId, Digest]]) -> PrefixIndex:
    """Offer full, written blocks for reuse, one after the other. A block published before stays as it is."""
    digests: dict[BlockId, Digest] = {}
    holders: dict[Digest, tuple[BlockId, ...]] = {}
    holders_of, digest_of = index.holders.get, index.digests.get
    for block_id, digest in blocks:
        if digest_of(block_id) is None and block_id not in digests:
            digests[block_id] = digest
            before = holders.get(digest) or holders_of(digest) or ()
            holders[digest] = (*before, block_id)
    if not digests:
        return index
    return PrefixIndex(index.holders.set_all(holders), index.digests.set_all(digests))


def withdraw(index: PrefixIndex, block_ids: Iterable[BlockId]) -> PrefixIndex:
    """Drop blocks that are about to hold something else, published or not."""
    holders, digests = index.holders, index.digests
    for block_id in block_ids:
        digest = digests.get(block_id)
        if digest is not None:
            left = tuple([holder for holder in holders.get(digest) or () if holder != block_id])
            holders = holders.set(digest, left) if left else holders.discard(digest)
            digests = digests.discard(block_id)
    return PrefixIndex(holders, digests)
