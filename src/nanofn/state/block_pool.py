"""The block pool: which blocks are free, in which order they are reused, and who shares one.

A free block is one of three kinds, reused in this order: `returned` ones hold nothing of use, ids from `frontier` up
were never handed out, `cached` ones hold a published prefix and go least recently used first. A held block has one
reference unless `shared` says more.
"""

from collections.abc import Iterable
from itertools import chain, repeat
from typing import cast

from attrs import evolve, frozen

from nanofn.errors import InvariantError
from nanofn.request import BlockId
from nanofn.state.chunked import Chunked
from nanofn.state.digest import Digest
from nanofn.state.persistent import Map
from nanofn.state.prefix_index import PrefixIndex, withdraw
from nanofn.state.sorted_table import SortedTable


@frozen
class BlockPool:
    """Free blocks and reference counts.

    Attributes:
        num_blocks: Blocks in all, ids 0 to num_blocks - 1.
        frontier: Smallest id never handed out.
        returned: Free blocks without a digest; the last one in is reused first.
        cached: Free blocks with their digests, by stamp: least recently released first.
        stamps: Block to the key in `cached` that it last had. A key that is there no more says that the block is held, or
            free and empty: taking one out of here as well would cost an eviction half of its time.
        shared: Block to its number of references, where that is 2 or more.
        next_stamp: Key of the next block released into `cached`.
    """

    num_blocks: int
    frontier: int = 0
    returned: Chunked[BlockId] = Chunked()
    cached: SortedTable[int, tuple[BlockId, Digest]] = SortedTable()
    stamps: Map[BlockId, int] = Map()
    shared: Map[BlockId, int] = Map()
    next_stamp: int = 0

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated, cached ones included."""
        return self.num_blocks - self.frontier + len(self.returned) + len(self.cached)

    def stamp_of(self, block_id: BlockId) -> int | None:
        """Find a block's key in `cached`; None if it is not cached."""
        stamp = self.stamps.get(block_id)
        return None if stamp is None or self.cached.get(stamp) is None else stamp


def allocate(pool: BlockPool, index: PrefixIndex, count: int) -> tuple[BlockPool, PrefixIndex, tuple[BlockId, ...]]:
    """Take free blocks, each with one reference. A cached block leaves the index before it is handed out.

    Raises:
        InvariantError: Fewer than `count` are free. Callers look at `num_free` first.
    """
    if count > pool.num_free:
        raise InvariantError((f"{count} blocks allocated, {pool.num_free} free",))
    returned: Chunked[BlockId] = pool.returned
    blocks: tuple[BlockId, ...] = ()
    if len(returned):
        returned, blocks = returned.pop(count)
    fresh = min(count - len(blocks), pool.num_blocks - pool.frontier)
    if fresh:
        blocks += cast("tuple[BlockId, ...]", tuple(range(pool.frontier, pool.frontier + fresh)))
    cached = pool.cached
    if len(blocks) < count:
        cached, evicted = cached.pop_first(count - len(blocks))
        index = withdraw(index, evicted)
        blocks += tuple([block_id for block_id, _ in evicted])
    # By position: `evolve` costs three times as much.
    frontier = pool.frontier + fresh
    return (
        BlockPool(pool.num_blocks, frontier, returned, cached, pool.stamps, pool.shared, pool.next_stamp),
        index,
        blocks,
    )


def share(pool: BlockPool, block_ids: Iterable[BlockId]) -> BlockPool:
    """Add one reference to each of some published blocks, free or held."""
    shared = pool.shared
    taken: set[int] = set()
    for block_id in block_ids:
        stamp = pool.stamp_of(block_id)
        if stamp is None or stamp in taken:
            shared = shared.set(block_id, (shared.get(block_id) or 1) + 1)
        else:
            taken.add(stamp)
    return evolve(pool, cached=pool.cached.discard_all(taken) if taken else pool.cached, shared=shared)


def release(pool: BlockPool, index: PrefixIndex, table: Chunked[BlockId], digests: Chunked[Digest]) -> BlockPool:
    """Drop one reference of each block of a table. What nobody holds becomes free, the table's tail before its head.

    Tail first, so that eviction shortens a cached prefix from its end and never cuts off blocks that stay reachable.

    Args:
        pool: The pool.
        index: Tells which of the blocks are published.
        table: The blocks.
        digests: What the first of them hold, if they are published: the chain of the table's owner.
    """
    returned: list[BlockId] = []
    cached: list[tuple[BlockId, Digest]] = []
    shared, holders_of, shares_any = pool.shared, index.holders.get, len(pool.shared) > 0
    for block_id, digest in reversed(list(zip(table, chain(digests, repeat(None)), strict=False))):
        references = pool.shared.get(block_id) if shares_any else None
        if references is not None:
            shared = shared.set(block_id, references - 1) if references > 2 else shared.discard(block_id)
        elif digest is not None and block_id in (holders_of(digest) or ()):
            cached.append((block_id, digest))
        else:
            returned.append(block_id)
    stamp, free, stamps = pool.next_stamp, pool.cached, pool.stamps
    if cached:
        free = free.extend(enumerate(cached, stamp))
        stamps = stamps.set_all({block_id: key for key, (block_id, _) in enumerate(cached, stamp)})
    stack = pool.returned.extend(reversed(returned)) if returned else pool.returned
    return BlockPool(pool.num_blocks, pool.frontier, stack, free, stamps, shared, stamp + len(cached))


def num_freed(pool: BlockPool, tables: Iterable[Iterable[BlockId]]) -> int:
    """Count the blocks that become free when all these tables are released."""
    drops: dict[BlockId, int] = {}
    for table in tables:
        for block_id in table:
            drops[block_id] = drops.get(block_id, 0) + 1
    return sum(count == (pool.shared.get(block_id) or 1) for block_id, count in drops.items())


def forget_cached(pool: BlockPool) -> BlockPool:
    """Turn every cached block into a returned one: the prefix index is being cleared."""
    cached = [block_id for block_id, _ in pool.cached.values()]
    return evolve(pool, returned=pool.returned.extend(reversed(cached)), cached=SortedTable(), stamps=Map())
