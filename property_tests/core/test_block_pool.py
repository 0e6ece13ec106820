"""The block pool against a list of owners: who is free, who is shared, and who is reused first."""

import pytest
from hypothesis import given, strategies as st

from nanofn.errors import InvariantError
from nanofn.state.block_pool import BlockPool, allocate, forget_cached, num_freed, release, share
from nanofn.state.chunked import Chunked
from nanofn.state.digest import Digest
from nanofn.state.prefix_index import PrefixIndex, match, publish, withdraw


def chain(*numbers):
    """A chain of digests."""
    return Chunked().extend(map(digest, numbers))


def free_pool(pool, index, table, *numbers):
    """Release a table whose first blocks were published under these numbers."""
    return release(pool, index, Chunked().extend(table), chain(*numbers))


def digest(number):
    """A digest like any other."""
    return Digest(number.to_bytes(16, "little"))


@given(st.data(), st.integers(1, 12))
def test_the_pool_counts_what_its_owners_hold(data, num_blocks) -> None:
    """After any allocations, shares and releases: free and held part the pool, and counts are numbers of tables."""
    pool, index, tables, names = BlockPool(num_blocks), PrefixIndex(), [], {}
    for number in range(data.draw(st.integers(0, 20))):
        what = data.draw(st.sampled_from(["allocate"] + ["share", "release", "publish"] * bool(tables)))
        if what == "allocate":
            count, was_free = data.draw(st.integers(0, pool.num_free)), free_blocks(pool)
            pool, index, blocks = allocate(pool, index, count)
            assert len(set(blocks)) == count
            assert set(blocks) <= was_free
            for block in blocks:
                names.pop(block, None)
            tables.append(blocks)
        elif what == "release":
            table = tables.pop(data.draw(st.integers(0, len(tables) - 1)))
            before, gain = pool.num_free, num_freed(pool, [table])
            named = [names.get(block, digest(999)) for block in table]
            pool = release(pool, index, Chunked().extend(table), Chunked().extend(named))
            assert pool.num_free == before + gain
        elif what == "share":
            kept = tuple([block for block in data.draw(st.sampled_from(tables)) if block in names])
            tables.append(kept)
            pool = share(pool, kept)
        else:
            for block in data.draw(st.sampled_from(tables)):
                names.setdefault(block, digest(number * 100 + block))
                index = publish(index, [(block, names[block])])
        check_pool(pool, index, tables)


def free_blocks(pool):
    """Every block that can be allocated."""
    return {*pool.returned, *range(pool.frontier, pool.num_blocks), *[block for block, _ in pool.cached.values()]}


def check_pool(pool, index, tables):
    """The pool says what its owners' tables say."""
    owners = {}
    for table in tables:
        for block in table:
            owners[block] = owners.get(block, 0) + 1
    free = free_blocks(pool)
    assert sorted([*free, *owners]) == list(range(pool.num_blocks))
    assert pool.num_free == len(free)
    assert {block: count for block, count in owners.items() if count > 1} == dict(pool.shared.items.items())
    published = {block: name for name, blocks in index.holders.items.items() for block in blocks}
    assert {block: name for block, name in published.items() if block in free} == dict(pool.cached.values())
    stamps = {block: pool.stamp_of(block) for block in range(pool.num_blocks)}
    assert {block: stamp for stamp, (block, _) in pool.cached} == {b: s for b, s in stamps.items() if s is not None}


def test_blocks_are_reused_in_the_order_that_keeps_prefixes() -> None:
    """First what holds nothing, then what was never used, then cached blocks: oldest release first, tail first."""
    pool, index, table = allocate(BlockPool(8), PrefixIndex(), 3)
    pool, index, other = allocate(pool, index, 2)
    for number, block in enumerate((*table, other[0])):
        index = publish(index, [(block, digest(number))])
    pool = free_pool(pool, index, table, 0, 1, 2)  # blocks 0, 1, 2, all published
    pool = free_pool(pool, index, other, 3)  # blocks 3 and 4; 4 holds no prefix
    pool, index, blocks = allocate(pool, index, 8)
    assert blocks == (4, 5, 6, 7, 2, 1, 0, 3)
    assert pool.num_free == 0


def test_unpublished_blocks_are_reused_from_the_tail_of_their_table() -> None:
    """What holds nothing of use comes back in one order as well: the last of a table first, and the last table first."""
    pool, index, one = allocate(BlockPool(6), PrefixIndex(), 3)
    pool, index, other = allocate(pool, index, 2)
    pool = free_pool(free_pool(pool, index, one), index, other)
    assert allocate(pool, index, 6)[2] == (4, 3, 2, 1, 0, 5)


def test_partial_blocks_do_not_push_out_cached_ones() -> None:
    """55 tokens in blocks of 16: the partial block is reused first, the full ones last and from their tail."""
    pool, index, table = allocate(BlockPool(10), PrefixIndex(), 4)
    for number, block in enumerate(table[:3]):
        index = publish(index, [(block, digest(number))])
    pool = free_pool(pool, index, table, 0, 1, 2)
    assert allocate(pool, index, 10)[2] == (3, 4, 5, 6, 7, 8, 9, 2, 1, 0)


def test_forgotten_blocks_are_reused_as_cached_ones_would_be() -> None:
    """The one that was released first comes first."""
    pool, index, table = allocate(BlockPool(4), PrefixIndex(), 3)
    for number, block in enumerate(table):
        index = publish(index, [(block, digest(number))])
    pool = forget_cached(free_pool(pool, index, table, 0, 1, 2))
    assert not len(pool.cached)
    assert allocate(pool, PrefixIndex(), 4)[2] == (2, 1, 0, 3)


def test_a_block_handed_out_is_in_the_index_no_more() -> None:
    """Allocation withdraws what it evicts, and nothing else."""
    pool, index, table = allocate(BlockPool(2), PrefixIndex(), 2)
    index = publish(index, zip(table, chain(1, 2), strict=True))
    pool = free_pool(pool, index, table, 1, 2)
    _, index, blocks = allocate(pool, index, 1)
    assert blocks == (1,)
    assert match(index, chain(1, 2), 2) == (0,)


def test_a_hit_revives_a_cached_block() -> None:
    """Sharing a free cached block takes it off the free list, sharing a held one counts it twice."""
    pool, index, table = allocate(BlockPool(3), PrefixIndex(), 2)
    index = publish(index, [(0, digest(0)), (1, digest(1))])
    pool = share(free_pool(pool, index, table, 0, 1), table)
    assert pool.num_free == 1
    assert not len(pool.shared)
    pool = share(pool, table)
    assert pool.shared.get(0) == 2
    pool = free_pool(pool, index, table, 0, 1)
    assert (pool.num_free, len(pool.shared)) == (1, 0)


def test_three_owners_count_down_one_by_one() -> None:
    """A block with three references needs three releases."""
    pool, index, table = allocate(BlockPool(1), PrefixIndex(), 1)
    index = publish(index, [(0, digest(0))])
    pool = share(share(pool, table), table)
    for left in (2, None, None):
        assert pool.num_free == 0
        pool = free_pool(pool, index, table, 0)
        assert pool.shared.get(0) == left
    assert pool.num_free == 1


def test_taking_more_than_is_free_is_a_bug_of_the_caller() -> None:
    """Allocation beyond the free count raises and names both numbers."""
    with pytest.raises(InvariantError, match="3 blocks allocated, 2 free"):
        allocate(BlockPool(2), PrefixIndex(), 3)


def test_num_freed_counts_what_nobody_else_holds() -> None:
    """A shared block is freed only together with all its owners."""
    pool, index, table = allocate(BlockPool(4), PrefixIndex(), 2)
    index = publish(index, [(0, digest(0))])
    pool = share(pool, (0,))
    pool, index, more = allocate(pool, index, 1)
    other = (0, *more)
    assert num_freed(pool, [table]) == 1
    assert num_freed(pool, [other]) == 1
    assert num_freed(pool, [table, other]) == 3
    assert num_freed(pool, []) == 0


def test_forgotten_blocks_are_free_and_empty() -> None:
    """Clearing the cache keeps the number of free blocks."""
    pool, index, table = allocate(BlockPool(3), PrefixIndex(), 2)
    index = publish(index, [(0, digest(0))])
    pool = forget_cached(free_pool(pool, index, table, 0))
    assert pool.num_free == 3
    assert not len(pool.cached)
    assert not len(pool.stamps)


def test_the_first_holder_of_a_digest_stays() -> None:
    """A second block with the same prefix is found once the first is gone, and no empty entry is left."""
    index = publish(PrefixIndex(), [(0, digest(1)), (3, digest(1))])
    assert match(index, chain(1), 1) == (0,)
    index = withdraw(index, [(0, digest(1))])
    assert match(index, chain(1), 1) == (3,)
    index = withdraw(index, [(3, digest(1))])
    assert match(index, chain(1), 1) == ()
    assert not len(index.holders)


def test_publishing_again_changes_nothing() -> None:
    """A block is listed once, also if it comes twice in one call; others line up behind it."""
    index = publish(PrefixIndex(), [(0, digest(1)), (0, digest(1)), (2, digest(1))])
    assert index.holders.get(digest(1)) == (0, 2)
    assert publish(index, [(2, digest(1))]) is index


def test_a_match_ends_at_the_first_gap() -> None:
    """Only an unbroken chain from the start is found, and no more than asked for."""
    index = publish(PrefixIndex(), [(4, digest(1)), (5, digest(3))])
    assert match(index, chain(1, 2, 3), 3) == (4,)
    index = publish(index, [(6, digest(2))])
    assert match(index, chain(1, 2, 3), 3) == (4, 6, 5)
    assert match(index, chain(1, 2, 3), 2) == (4, 6)
    assert match(index, chain(1, 2, 3), 0) == ()
