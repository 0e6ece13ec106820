"""The prefix index: which blocks hold which prefix. A digest maps to every holder; the first one stays.

Which digest a block has is not stored: a sequence's chain names those of its table, the pool those of cached blocks.
"""

from collections.abc import Collection, Iterable

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
    """

    holders: Map[Digest, tuple[BlockId, ...]] = Map()


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
    """Offer full, written blocks for reuse, in order. A block published before stays as it is."""
    holders: dict[Digest, tuple[BlockId, ...]] = {}
    holders_of = index.holders.get
    for block_id, digest in blocks:
        before = holders.get(digest) or holders_of(digest)
        if before is None:
            holders[digest] = (block_id,)
        elif block_id not in before:
            holders[digest] = (*before, block_id)
    return PrefixIndex(index.holders.set_all(holders)) if holders else index


def withdraw(index: PrefixIndex, blocks: Collection[tuple[BlockId, Digest]]) -> PrefixIndex:
    """Drop published blocks that are about to hold something else."""
    left: dict[Digest, tuple[BlockId, ...]] = {}
    holders_of = index.holders.get
    alone = [digest for _, digest in blocks if len(holders_of(digest) or ()) == 1]
    if len(alone) == len(blocks):  # nearly always: then no two of them are equal
        return PrefixIndex(index.holders.discard_all(alone))
    for block_id, digest in blocks:
        holders = left.get(digest) or holders_of(digest) or ()
        left[digest] = () if len(holders) < 2 else tuple([holder for holder in holders if holder != block_id])
    kept = {digest: holders for digest, holders in left.items() if holders}
    changed = index.holders.discard_all([digest for digest in left if digest not in kept])
    return PrefixIndex(changed.set_all(kept) if kept else changed)
