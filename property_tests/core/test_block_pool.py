"""The block pool against a list of owners: who is free, who is shared, and who is reused first."""

import pytest
from hypothesis import given, strategies as st

from nanofn.errors import InvariantError
from nanofn.state.block_pool import BlockPool, allocate, forget_cached, num_freed, release, share
from nanofn.state.chunked import Chunked
from nanofn.state.digest import Digest
from nanofn.state.prefix_index import PrefixIndex, match, publish, withdraw


def digest(number):
    """A digest like any other."""
    return Digest(number.to_bytes(16, "little"))


@given(st.data(), st.integers(1, 12))
def test_the_pool_counts_what_its_owners_hold(data, num_blocks) -> None:
    """After any allocations, shares and releases: free and held part the pool, and counts are numbers of tables."""
    pool, index, tables, published = BlockPool(num_blocks), PrefixIndex(), [], 0
    for _ in range(data.draw(st.integers(0, 20))):
        choices = ["allocate"] + ["share", "release", "publish"] * bool(tables)
        what = data.draw(st.sampled_from(choices))
        if what == "allocate":
            count = data.draw(st.integers(0, pool.num_free))
            was_free = free_blocks(pool)
            pool, index, blocks = allocate(pool, index, count)
            assert len(set(blocks)) == count
            assert set(blocks) <= was_free
            assert not any(block in index.digests for block in blocks)
            tables.append(blocks)
        elif what == "release":
            table = tables.pop(data.draw(st.integers(0, len(tables) - 1)))
            gain = num_freed(pool, [table])
            before = pool.num_free
            pool = release(pool, index, table)
            assert pool.num_free == before + gain
        elif what == "share":
            table = data.draw(st.sampled_from(tables))
            kept = tuple([block for block in table if block in index.digests])
            tables.append(kept)
            pool = share(pool, kept)
        else:
            for block in data.draw(st.sampled_from(tables)):
                published += 1
                index = publish(index, [(block, digest(published))])
        check_pool(pool, index, tables)


def free_blocks(pool):
    """Every block that can be allocated."""
    return {*pool.returned, *range(pool.frontier, pool.num_blocks), *pool.cached.values()}


def check_pool(pool, index, tables):
    """The pool says what its owners' tables say."""
    owners = {}
    for table in tables:
        for block in table:
            owners[block] = owners.get(block, 0) + 1
    free = [*pool.returned, *range(pool.frontier, pool.num_blocks), *pool.cached.values()]
    assert sorted([*free, *owners]) == list(range(pool.num_blocks))
    assert pool.num_free == len(free)
    assert {block: count for block, count in owners.items() if count > 1} == dict(pool.shared.items.items())
    assert {block for block in free if block in index.digests} == set(pool.cached.values())


def test_blocks_are_reused_in_the_order_that_keeps_prefixes() -> None:
    """First what holds nothing, then what was never used, then cached blocks: oldest release first, tail first."""
    pool, index, table = allocate(BlockPool(8), PrefixIndex(), 3)
    pool, index, other = allocate(pool, index, 2)
    for number, block in enumerate((*table, other[0])):
        index = publish(index, [(block, digest(number))])
    pool = release(pool, index, table)  # blocks 0, 1, 2, all published
    pool = release(pool, index, other)  # blocks 3 and 4; 4 holds no prefix
    pool, index, blocks = allocate(pool, index, 8)
    assert blocks == (4, 5, 6, 7, 2, 1, 0, 3)
    assert pool.num_free == 0


def test_partial_blocks_do_not_push_out_cached_ones() -> None:
    """55 tokens in blocks of 16: the partial block is reused first, the full ones last and from their tail."""
    pool, index, table = allocate(BlockPool(10), PrefixIndex(), 4)
    for number, block in enumerate(table[:3]):
        index = publish(index, [(block, digest(number))])
    pool = release(pool, index, table)
    assert allocate(pool, index, 10)[2] == (3, 4, 5, 6, 7, 8, 9, 2, 1, 0)


def test_a_block_handed_out_is_in_the_index_no_more() -> None:
    """Allocation withdraws what it evicts, and nothing else."""
    pool, index, table = allocate(BlockPool(2), PrefixIndex(), 2)
    chain = Chunked().extend([digest(1), digest(2)])
    for block, name in zip(table, chain, strict=True):
        index = publish(index, [(block, name)])
    pool = release(pool, index, table)
    _, index, blocks = allocate(pool, index, 1)
    assert blocks == (1,)
    assert match(index, chain, 2) == (0,)


def test_a_hit_revives_a_cached_block() -> None:
    """Sharing a free cached block takes it off the free list, sharing a held one counts it twice."""
    pool, index, table = allocate(BlockPool(3), PrefixIndex(), 2)
    index = publish(index, [(0, digest(0)), (1, digest(1))])
    pool = share(release(pool, index, table), table)
    assert pool.num_free == 1
    assert not len(pool.shared)
    pool = share(pool, table)
    assert pool.shared.get(0) == 2
    pool = release(pool, index, table)
    assert (pool.num_free, len(pool.shared)) == (1, 0)


def test_three_owners_count_down_one_by_one() -> None:
    """A block with three references needs three releases."""
    pool, index, table = allocate(BlockPool(1), PrefixIndex(), 1)
    index = publish(index, [(0, digest(0))])
    pool = share(share(pool, table), table)
    for left in (2, None, None):
        assert pool.num_free == 0
        pool = release(pool, index, table)
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
    pool = forget_cached(release(pool, index, table))
    assert pool.num_free == 3
    assert not len(pool.cached)
    assert not len(pool.stamps)


def test_the_first_holder_of_a_digest_stays() -> None:
    """A second block with the same prefix is found once the first is gone, and no empty entry is left."""
    index = publish(PrefixIndex(), [(0, digest(1)), (3, digest(1))])
    chain = Chunked().push(digest(1))
    assert match(index, chain, 1) == (0,)
    index = withdraw(index, [0])
    assert match(index, chain, 1) == (3,)
    index = withdraw(index, [3])
    assert match(index, chain, 1) == ()
    assert not len(index.holders)
    assert not len(index.digests)
    assert withdraw(index, [3]) == index


def test_a_published_block_keeps_its_digest() -> None:
    """Publishing again changes nothing, also within one call."""
    index = publish(PrefixIndex(), [(0, digest(1))])
    assert publish(index, [(0, digest(2))]) == index
    assert publish(PrefixIndex(), [(0, digest(1)), (0, digest(2))]) == index


def test_a_match_ends_at_the_first_gap() -> None:
    """Only an unbroken chain from the start is found, and no more than asked for."""
    chain = Chunked().extend([digest(1), digest(2), digest(3)])
    index = publish(PrefixIndex(), [(4, digest(1)), (5, digest(3))])
    assert match(index, chain, 3) == (4,)
    index = publish(index, [(6, digest(2))])
    assert match(index, chain, 3) == (4, 6, 5)
    assert match(index, chain, 2) == (4, 6)
    assert match(index, chain, 0) == ()
