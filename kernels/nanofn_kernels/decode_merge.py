"""How decode attention adds up the splits of a sequence."""

from nanofn_kernels._dispatch import jit, tl
from nanofn_kernels.decode_launch import Launch

MERGE_SPLITS = tl.constexpr(16)
"""Partial results that a merging program asks for before it uses the first: all that 8 or more K/V heads can have."""


@jit
def merge_splits(
    out_ptr, scratch_ptr, weights_ptr, num_splits, out_stride_head,
    NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_COLS: tl.constexpr,
    SPLITS: tl.constexpr, MERGE_ROWS: tl.constexpr,
):  # fmt: skip
    """out = sum_s 2^(w_s - w) out_s / sum_s 2^(w_s - w), w = max_s w_s: the same sums in the same order, whoever comes last.

    A thread adds up its own numbers over the splits, in registers: nothing goes through shared memory.
    """
    dim = tl.arange(0, HEAD_COLS)
    for first_row in range(0, GROUP, MERGE_ROWS):
        member = first_row + tl.arange(0, MERGE_ROWS)
        in_group = member < GROUP
        wanted = in_group[:, None] & (dim < HEAD_DIM)[None, :]
        highest = tl.full([MERGE_ROWS], -1e30, tl.float32)
        total = tl.zeros([MERGE_ROWS], tl.float32)
        acc = tl.zeros([MERGE_ROWS, HEAD_COLS], tl.float32)
        stop = MERGE_SPLITS if SPLITS <= MERGE_SPLITS else num_splits
        for first in range(0, stop, MERGE_SPLITS):
            logs, parts = (), ()
            # .cg: written by other multiprocessors, so not from this one's L1. What is not there has weight 2^-1e30 = 0.
            for ahead in tl.static_range(MERGE_SPLITS):
                place = (first + ahead) * NUM_HEADS + member
                real = first + ahead < num_splits
                logs += (tl.load(weights_ptr + place, mask=in_group & real, other=-1e30, cache_modifier=".cg"),)
            for ahead in tl.static_range(MERGE_SPLITS):
                place = (first + ahead) * NUM_HEADS + member
                real = first + ahead < num_splits
                at = scratch_ptr + place[:, None] * HEAD_DIM + dim[None, :]
                parts += (tl.load(at, mask=wanted & real, other=0.0, cache_modifier=".cg"),)
            new_highest = highest
            for ahead in tl.static_range(MERGE_SPLITS):
                new_highest = tl.maximum(new_highest, logs[ahead])
            shrink = tl.exp2(highest - new_highest)
            total *= shrink
            acc *= shrink[:, None]
            for ahead in tl.static_range(MERGE_SPLITS):
                weight = tl.exp2(logs[ahead] - new_highest)
                total += weight
                acc += weight[:, None] * parts[ahead]
            highest = new_highest
        result = acc / total[:, None]
        tl.store(
            out_ptr + member[:, None] * out_stride_head + dim[None, :], result.to(out_ptr.dtype.element_ty), mask=wanted
        )


def merge_shape(launch: Launch, group_rows: int, head_cols: int) -> tuple[int | None, int]:
    """The registers that a thread may have, and the heads whose splits they suffice to merge at once.

    16 splits' 8 numbers fit 255 registers without spills, where so many are free, and 4 numbers fit what the assembler takes by
    itself. That keeps to 160, and asks for some of more than 2 numbers only after it has used others: then it is told of 255.
    """
    threads = 32 * launch.num_warps
    is_roomy = 256 * threads * launch.programs_per_sm <= 65_536
    rows = max(1, min(group_rows, threads * (8 if is_roomy else 4) // head_cols))
    return (255 if is_roomy and rows * head_cols > 2 * threads else None), rows
