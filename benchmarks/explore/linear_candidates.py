"""Launches of a Qwen3-0.6B layer's products that may be fast at 128 and 256 rows."""

from itertools import product

from explore.tma_product import TmaLaunch
from nanofn_kernels.linear_held import HeldLaunch
from nanofn_kernels.linear_plan import FEW, LIBRARY, Library, Shape, held_launch

PRODUCTS: dict[str, Shape] = {
    "qkv": (1024, 4096, False),
    "out": (2048, 1024, False),
    "up": (1024, 3072, True),
    "down": (3072, 1024, False),
}
SPLITS = {"qkv": (1,), "out": (4, 2, 1), "up": (1,), "down": (4, 2, 1)}

WHOLE, HALF = 226 * 1024, 112 * 1024
"""Bytes of shared memory for a program that has a multiprocessor to itself, and for one of two; tiles alone."""

MULTIPROCESSORS = 132

Candidate = HeldLaunch | TmaLaunch | Library


def candidates(num_rows: int, *, are_specialised: bool = False) -> dict[str, list[Candidate]]:
    """List what each product may be launched with, what the tables have first.

    Args:
        num_rows: 128 or 256.
        are_specialised: Only those that Triton specialises warps for: it may fail on them, or they may hang.
    """
    if are_specialised:
        return {name: [*_specialised(name)] for name in PRODUCTS}
    return {
        name: list(dict.fromkeys([table, FEW[shape], LIBRARY, *_held(name, num_rows), *_by_tma(name, num_rows)]))
        for name, shape in PRODUCTS.items()
        for table in [held_launch(num_rows, *shape)]
    }


def _held(name: str, num_rows: int) -> list[HeldLaunch]:
    """One or two programs a multiprocessor, with as many held tiles as then fit."""
    found = []
    for rows, outputs, tile, splits, budget in product(
        (64, 128), (32, 64, 128), (64, 128), SPLITS[name], (WHOLE, HALF)
    ):
        if _is_likely(name, num_rows, rows, outputs, tile, splits, budget):
            for num_warps in (4,) if rows == 64 else (4, 8):
                found += _filled(name, rows, outputs, tile, splits, budget, num_warps)
    return found


def _is_likely(name: str, num_rows: int, rows: int, outputs: int, tile: int, splits: int, budget: int) -> bool:
    """Say whether about all multiprocessors would have work, and drop what was never near."""
    if num_rows == 128 and rows == 128:
        return False  # as in the table
    if tile == 128 and (rows == 128 or outputs == 32):
        return False
    if splits != SPLITS[name][0] and (rows, outputs) != (64, 64 if splits == 2 else 32):
        return False
    programs = -(-num_rows // rows) * (PRODUCTS[name][1] // outputs) * splits
    least, most = (96 if num_rows == 256 else 60), MULTIPROCESSORS * (1 if budget == WHOLE else 2)
    return least <= programs <= most


def _filled(
    name: str, rows: int, outputs: int, tile: int, splits: int, budget: int, num_warps: int
) -> list[HeldLaunch]:
    """Fill the budget with tiles: a few of x, and of the weight what is left, at most ten."""
    in_features, _, is_gated = PRODUCTS[name]
    columns = outputs * (2 if is_gated else 1)
    accumulators = rows * columns // (32 * num_warps)
    if accumulators > 128 or (budget == HALF and num_warps * accumulators > 512):
        return []
    steps, x_bytes, weight_bytes = in_features // splits // tile, rows * tile * 2, columns * tile * 2
    depths = {(64, WHOLE): (5,), (128, WHOLE): (3,), (64, HALF): (3, 4), (128, HALF): (2,)}[tile, budget]
    found = []
    for staged in depths:
        held = min(steps, 10, (budget - 1024 - staged * x_bytes) // weight_bytes)
        if held >= (3 if tile == 64 else 2) and steps >= max(held, staged):
            # The copy engine for x is tried once for each shape of two programs.
            kinds = (False, True) if budget == HALF and staged == (4 if rows == 64 else 3) else (False,)
            found += [HeldLaunch(rows, outputs, tile, splits, held, staged, num_warps, kind) for kind in kinds]
    return found


def _by_tma(name: str, num_rows: int) -> list[TmaLaunch]:
    """Both operands by the copy engine, one program flow."""
    if num_rows == 128:
        return []
    splits, is_gated = SPLITS[name][0], PRODUCTS[name][2]
    shapes = [(128, 64, 64, 4, 5), (128, 64, 64, 8, 4), (128, 64, 64, 8, 5), (128, 64, 128, 8, 3), (128, 32, 64, 4, 4)]
    shapes += [] if is_gated else [(128, 128, 64, 8, 5), (64, 64, 64, 4, 5)]
    return [TmaLaunch(rows, outputs, tile, splits, warps, stages) for rows, outputs, tile, warps, stages in shapes]


def _specialised(name: str) -> list[TmaLaunch]:
    """The same with warps that only fetch."""
    splits, is_gated = SPLITS[name][0], PRODUCTS[name][2]
    shapes = [(64, 3), (64, 4)] + ([] if is_gated else [(128, 3)])
    return [TmaLaunch(128, outputs, 64, splits, 4, stages, is_specialised=True) for outputs, stages in shapes]
