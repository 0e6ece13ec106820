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
    for block_id, digest in blocks:
        if block_id not in index.digests and block_id not in digests:
            digests[block_id] = digest
            before = holders.get(digest) or index.holders.get(digest) or ()
            holders[digest] = (*before, block_id)
    if not digests:
        return index
    return PrefixIndex(index.holders.set_all(holders), index.digests.set_all(digests))


def withdraw(index: PrefixIndex, block_id: BlockId) -> PrefixIndex:
    """Drop a block that is about to hold something else; published or not."""
    digest = index.digests.get(block_id)
    if digest is None:
        return index
    left = tuple([holder for holder in index.holders.get(digest) or () if holder != block_id])
    holders = index.holders.set(digest, left) if left else index.holders.discard(digest)
    return PrefixIndex(holders, index.digests.discard(block_id))
