"""The forms of decode attention that `benchmarks/explore` times compute what the kernel does."""

from itertools import product

import pytest
import torch

from explore.decode_variants import MODES, launch_variant, prepare
from nanofn_kernels.work_list import NO_SPLIT
from ops.paged import TOLERANCE, Sequences, decode, error, make_work

RIGHT = [mode for mode in MODES if mode != "none"]


@pytest.mark.parametrize(
    ("mode", "early_ids", "split_size"), [*product(RIGHT, (False, True), (64,)), ("counter", True, NO_SPLIT)]
)
def test_a_variant_is_the_kernel(mode, early_ids, split_size):
    """Each form gives the kernel's results twice in a row: it leaves scratch and counters as it found them."""
    sequences = Sequences([129, 1, 0, 64], kv_heads=1, head_dim=32, block_size=16, dtype=torch.float32)
    query = sequences.queries(4, 2)
    wanted = decode(sequences, query, split_size)
    work = make_work(sequences.table, sequences.rows, sequences.seq_lens, split_size, 16, 2, 1, 32)
    prepare(work[3], mode)
    arguments = (query, sequences.k_cache, sequences.v_cache, sequences.table.shape[1], *work, 32**-0.5, split_size)
    first, second = (launch_variant(*arguments, mode=mode, early_ids=early_ids) for _ in range(2))
    assert torch.equal(first, second)
    assert error(first, wanted) < TOLERANCE[torch.float32]
    assert not work[-1].any()
