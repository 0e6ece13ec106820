"""Which kernel does a product, and how it is shaped: static tables, measured on an H200."""

from dataclasses import dataclass, replace

import torch

from nanofn_kernels.linear_held import HeldLaunch
from nanofn_kernels.linear_row import RowLaunch
from nanofn_kernels.linear_tile import TileLaunch

Shape = tuple[int, int, bool]
"""in_features, number of results, is_gated."""


@dataclass(frozen=True)
class Library:
    """The product is the library's (cuBLAS); norm, bias, gate and residual are kernels around it."""


Launch = RowLaunch | HeldLaunch | TileLaunch | Library

LIBRARY = Library()

ROW: dict[Shape, RowLaunch] = {
    # Qwen3-0.6B: QKV, attention output, gate and up, down.
    (1024, 4096, False): RowLaunch(outputs=16, slices=1, num_warps=8),
    (2048, 1024, False): RowLaunch(outputs=4, slices=1, num_warps=4),
    (1024, 3072, True): RowLaunch(outputs=8, slices=1, num_warps=4),
    (3072, 1024, False): RowLaunch(outputs=2, slices=2, num_warps=4),
    # Qwen3-8B.
    (4096, 6144, False): RowLaunch(outputs=4, slices=4, num_warps=4),
    (4096, 4096, False): RowLaunch(outputs=1, slices=8, num_warps=8),
    (4096, 12288, True): RowLaunch(outputs=2, slices=4, num_warps=4),
    (12288, 4096, False): RowLaunch(outputs=1, slices=8, num_warps=8),
}
"""Launches for one row; other shapes follow `row_launch`."""

FEW: dict[Shape, HeldLaunch] = {
    (1024, 4096, False): HeldLaunch(rows=64, outputs=64, tile=128, splits=1, held=6, staged=4),
    (2048, 1024, False): HeldLaunch(rows=64, outputs=64, tile=128, splits=4, held=4, staged=4),
    (1024, 3072, True): HeldLaunch(rows=64, outputs=32, tile=128, splits=1, held=5, staged=5),
    (3072, 1024, False): HeldLaunch(rows=64, outputs=64, tile=128, splits=4, held=6, staged=3),
}
"""Launches for 2 to 64 rows."""

MEDIUM: dict[Shape, HeldLaunch] = {
    (1024, 4096, False): HeldLaunch(rows=128, outputs=64, tile=64, splits=1, held=8, staged=5),
    (2048, 1024, False): HeldLaunch(rows=64, outputs=32, tile=64, splits=4, held=8, staged=3),
    (1024, 3072, True): HeldLaunch(rows=64, outputs=32, tile=64, splits=1, held=9, staged=4, x_by_tma=True),
    (3072, 1024, False): HeldLaunch(rows=64, outputs=64, tile=64, splits=4, held=9, staged=4),
}
"""Launches for 65 to 128 rows."""

MANY: dict[Shape, HeldLaunch] = {
    (1024, 4096, False): HeldLaunch(rows=128, outputs=64, tile=64, splits=1, held=8, staged=5),
    (2048, 1024, False): HeldLaunch(rows=64, outputs=64, tile=64, splits=4, held=8, staged=4),
    (1024, 3072, True): HeldLaunch(rows=128, outputs=64, tile=64, splits=1, held=6, staged=5, num_warps=8),
    (3072, 1024, False): HeldLaunch(rows=64, outputs=128, tile=64, splits=4, held=10, staged=5),
}
"""Launches for more rows."""

LARGE = 16_000_000
"""Elements of a weight from which on a product of several rows is long enough for the library."""

PROGRAMS = 128
"""Programs that a small product should have: nearly one for each of 132 multiprocessors."""


def num_splits(in_features: int, num_outputs: int, is_gated: bool) -> int:
    """Choose how many programs share the columns: a function of the weight alone, so that bits do not depend on the batch."""
    splits = 1
    programs = -(-num_outputs // 32)
    while (
        not is_gated
        and programs * splits * 2 <= PROGRAMS * 5 // 4
        and in_features % (splits * 2 * 128) == 0
        and splits < 8
    ):
        splits *= 2
    return splits


def row_launch(in_features: int, num_outputs: int, is_gated: bool) -> RowLaunch:
    """Choose a launch for one row: slices of at most 2,048 columns, 1,024 if a program holds two weights."""
    found = ROW.get((in_features, num_outputs, is_gated))
    if found:
        return found
    slices = 1
    while in_features // slices > (1024 if is_gated else 2048) and in_features % (slices * 512) == 0:
        slices *= 2
    return RowLaunch(outputs=max(1, 4 // slices), slices=slices, num_warps=max(4, min(slices, 16)))


def held_launch(num_rows: int, in_features: int, num_outputs: int, is_gated: bool) -> HeldLaunch:
    """Choose a launch with held weights."""
    table = FEW if num_rows <= 64 else MEDIUM if num_rows <= 128 else MANY
    found = table.get((in_features, num_outputs, is_gated))
    if found:
        return found
    splits = num_splits(in_features, num_outputs, is_gated)
    small = HeldLaunch(rows=64, outputs=32, tile=128, splits=splits, held=4, staged=4)
    steps = in_features // splits // small.tile
    return replace(small, held=max(1, min(4, steps)), staged=max(1, min(4, steps)))


def tile_launch(num_rows: int, in_features: int, num_outputs: int, is_gated: bool, dtype: torch.dtype) -> TileLaunch:
    """Choose a launch that works for every shape and type, with the splits of `held_launch`."""
    splits = held_launch(num_rows, in_features, num_outputs, is_gated).splits
    if dtype == torch.float32:
        return TileLaunch(rows=16, outputs=32, tile=32, splits=splits, num_stages=3)
    rows = 16 if num_rows <= 16 else 64
    return TileLaunch(rows=rows, outputs=32, tile=128, splits=splits, num_stages=3 if is_gated else 4)


def prefers_library(num_rows: int, in_features: int, num_outputs: int, is_gated: bool) -> bool:
    """Say whether the library's product is the fastest one, where bits may depend on the batch."""
    return num_rows > 1 and in_features * num_outputs * (2 if is_gated else 1) >= LARGE


def norms_ahead(num_rows: int, batch_invariant: bool) -> bool:
    """Say whether a product leaves its rows normed for the next one. For one row the next one norms faster by itself."""
    return num_rows > 1 or batch_invariant
