"""What explorations would time, and how they search."""

import pytest

from explore.explore_linear import search
from explore.linear_candidates import HALF, MULTIPROCESSORS, PRODUCTS, WHOLE, candidates
from nanofn_kernels.linear_held import HeldLaunch
from nanofn_kernels.linear_plan import held_launch


@pytest.mark.parametrize("num_rows", [128, 256])
def test_candidates_fit_a_multiprocessor(num_rows):
    """Tiles fit the shared memory that a program may have, and no product is left without a choice."""
    for name, launches in candidates(num_rows).items():
        in_features, outputs, is_gated = PRODUCTS[name]
        held = [launch for launch in launches[3:] if isinstance(launch, HeldLaunch)]
        assert held
        for launch in held:
            wide = launch.outputs * (2 if is_gated else 1)
            num_bytes = 2 * launch.tile * (launch.held * wide + launch.staged * launch.rows)
            programs = -(-num_rows // launch.rows) * (outputs // launch.outputs) * launch.splits
            assert num_bytes <= (WHOLE if programs <= MULTIPROCESSORS else HALF)
            assert in_features % (launch.splits * launch.tile) == 0


def test_the_search_finds_what_depends_on_two_products():
    """A launch that only pays beside another product's new one is found in the second turn; what cannot run is left out."""
    start = {name: held_launch(256, *shape) for name, shape in PRODUCTS.items()}
    choices = {name: launches[:6] for name, launches in candidates(256).items()}
    wanted = start | {"up": choices["up"][4], "out": choices["out"][3]}

    def measure(launches):
        if launches["down"] != start["down"]:
            return float("inf")
        gain = 2.0 if launches["out"] == wanted["out"] else 0.0
        if launches["up"] == wanted["up"]:
            gain += 3.0 if gain else -1.0
        return 30.0 - gain

    assert search(choices, start, measure) == (wanted, 25.0)
    assert search(choices, start, measure, lambda: True) == (start, 30.0)
