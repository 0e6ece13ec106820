"""How decode attention is cut and launched: static tables, measured on an H200. No Triton in here."""

from dataclasses import dataclass

from nanofn_kernels._dispatch import next_power_of_2
from nanofn_kernels.work_list import NO_SPLIT, SPLIT_UNIT


def decode_split_size(num_seqs: int, num_kv_heads: int) -> int:
    """Choose the split size by batch: the default mode's rule, from measurements on an H200.

    From 128 programs on, one a multiprocessor with a deep pipeline reads as fast as splits would, and nothing is merged.

    Args:
        num_seqs: Entries of the bucket, padding included.
        num_kv_heads: K/V heads; with `num_seqs` the number of programs without splits.

    Returns:
        Tokens a split, for `work_list` and `paged_decode`. Bits depend on it: a constant gives batch-invariant ones.
    """
    pairs = num_seqs * num_kv_heads
    return NO_SPLIT if pairs >= 128 else max(SPLIT_UNIT, 4 * pairs // SPLIT_UNIT * SPLIT_UNIT)


def scratch_size(num_items: int, num_heads: int, head_dim: int) -> int:
    """The float32 numbers that `scratch` must hold: an output and its weight for every item and head."""
    return num_items * num_heads * (head_dim + 1)


@dataclass(frozen=True)
class Launch:
    """How a decode launch is shaped.

    Attributes:
        tile: K/V tokens a step, at most `SPLIT_UNIT`.
        num_warps: Warps a program.
        num_stages: Triton's pipeline depth: one more than the tiles in flight.
        programs_per_sm: Programs of a split launch for every multiprocessor; they stride over the items.
    """

    tile: int
    num_warps: int
    num_stages: int
    programs_per_sm: int = 1


def choose_launch(num_seqs: int, num_kv_heads: int, head_dim: int, element_bytes: int, *, fixed_tile: bool) -> Launch:
    """Choose from a static table, measured on an H200 with 256 bytes a row.

    Args:
        num_seqs: Entries, padding included.
        num_kv_heads: K/V heads.
        head_dim: Width of a head.
        element_bytes: Bytes of a cache element.
        fixed_tile: Leave tile and warps, which decide bits, independent of the batch.

    Returns:
        The launch.
    """
    pairs, row_bytes = num_seqs * num_kv_heads, element_bytes * next_power_of_2(head_dim)
    if element_bytes == 4 or row_bytes > 512:
        return Launch(tile=16, num_warps=4, num_stages=2, programs_per_sm=3)
    if row_bytes > 256:
        return Launch(tile=32, num_warps=4, num_stages=3, programs_per_sm=2)
    if fixed_tile or pairs < 32:
        return Launch(tile=64, num_warps=4, num_stages=3, programs_per_sm=1 if pairs < 32 else 3)
    if pairs < 128:
        return Launch(tile=32, num_warps=2, num_stages=4, programs_per_sm=4)
    # One, two and four programs a multiprocessor run at once. They have so many stages that no more of them fit: two must not share
    # one multiprocessor while another is idle, and the next launch's, which come early, must find no room beside them, or those
    # share the multiprocessors unequally (6% at 512 programs behind the kernel that makes their query).
    if pairs <= 132:
        return Launch(tile=64, num_warps=4, num_stages=5)
    if pairs <= 264:
        return Launch(tile=64, num_warps=4, num_stages=4)
    if pairs < 2048:
        return Launch(tile=32, num_warps=2, num_stages=4)
    # Many small programs: the last round of large ones left multiprocessors idle.
    return Launch(tile=32, num_warps=1, num_stages=2)
