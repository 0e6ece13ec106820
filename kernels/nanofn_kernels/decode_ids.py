"""Which blocks a tile of decode attention reads: their ids, of an item's row of the work list, and where its tokens lie.

The ids of BLOCKS blocks, at most 8, are a tuple of numbers. If a tile cuts blocks or has more of them, BLOCKS is 0 and the ids are
a tensor, one for each token.
"""

from nanofn_kernels._dispatch import jit, tl


def few_blocks(tile: int, block_size: int) -> int:
    """How many whole blocks a tile is, or 1 if it lies within one; 0 if it cuts blocks or has more than 8."""
    if block_size % tile == 0:
        return 1
    return 0 if tile % block_size or tile > 8 * block_size else tile // block_size


@jit
def ask_for_ids(ids_ptr, blocks_stride):
    """Have an item's first 512 ids brought to L2: one address for each 32 bytes of them.

    A tile's ids are loaded one tile ahead, which is too late where they come from memory.
    """
    place = tl.minimum(tl.arange(0, 64) * 8, blocks_stride - 1)
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [ids_ptr + place], dtype=tl.int32, is_pure=False, pack=1
    )


@jit
def first_ids(ids_ptr, blocks_stride, start, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, BLOCKS: tl.constexpr, IS_EARLY: tl.constexpr):  # fmt: skip
    """The ids of an item's first tile, whatever its length: what lies past its end is read and never followed."""
    if BLOCKS > 0:
        ids = ()
        for index in tl.static_range(BLOCKS):
            place = 0 if BLOCKS == 1 else tl.minimum(index, blocks_stride - 1)
            ids += (tl.load(ids_ptr + place, volatile=IS_EARLY),)
    else:
        # Items begin at multiples of 64, and so within a block whose size does not divide them.
        inside = 0 if TILE % BLOCK_SIZE == 0 else start % BLOCK_SIZE
        ids = tl.load(ids_ptr + tl.minimum((inside + tl.arange(0, TILE)) // BLOCK_SIZE, blocks_stride - 1))
    return ids


@jit
def next_ids(ids_ptr, first, first_block, stop, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, BLOCKS: tl.constexpr):
    """The ids of the tile at `first`."""
    if BLOCKS > 0:
        ids = ()
        for index in tl.static_range(BLOCKS):
            here = first + index * BLOCK_SIZE
            ids += (tl.load(ids_ptr + (first // BLOCK_SIZE - first_block) + index, mask=here < stop, other=0),)
    else:
        position = first + tl.arange(0, TILE)
        ids = tl.load(ids_ptr + (position // BLOCK_SIZE - first_block), mask=position < stop, other=0)
    return ids


@jit
def tile_rows(
    ids, first, STRIDE_BLOCK: tl.constexpr, STRIDE_SLOT: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Where in the cache the rows of a tile's tokens begin.

    Of few blocks the compiler knows which one a thread's rows are in: it makes an address a block and selects nothing.
    """
    token = tl.arange(0, TILE)
    if BLOCKS > 1:
        starts = tl.zeros([TILE], tl.int64)
        for index in tl.static_range(BLOCKS):
            starts = tl.where(token // BLOCK_SIZE == index, ids[index].to(tl.int64) * STRIDE_BLOCK, starts)
        rows = starts + (token % BLOCK_SIZE) * STRIDE_SLOT
    elif BLOCKS == 1:
        rows = ids[0].to(tl.int64) * STRIDE_BLOCK + (first % BLOCK_SIZE) * STRIDE_SLOT + token * STRIDE_SLOT
    else:
        rows = ids.to(tl.int64) * STRIDE_BLOCK + (first + token) % BLOCK_SIZE * STRIDE_SLOT
    return rows[:, None]
