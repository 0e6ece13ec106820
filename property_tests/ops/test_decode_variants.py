"""What `benchmarks/explore` times beside decode attention computes what the kernel does."""

import torch

from explore.decode_variants import launch_variant
from ops.paged import TOLERANCE, Sequences, decode, error, make_work


def test_the_former_merge_is_the_kernels():
    """It gives the kernel's results twice in a row: it leaves counters as it found them."""
    sequences = Sequences([129, 1, 0, 64], kv_heads=1, head_dim=32, block_size=16, dtype=torch.float32)
    query = sequences.queries(4, 2)
    items, blocks, count, _, arrived = make_work(sequences.table, sequences.rows, sequences.seq_lens, 64, 16, 2, 1, 32)
    columns = sequences.table.shape[1]
    arguments = (query, sequences.k_cache, sequences.v_cache, columns, items, blocks, count, arrived, 32**-0.5, 64)
    first, second = (launch_variant(*arguments, mode="held") for _ in range(2))
    assert torch.equal(first, second)
    assert error(first, decode(sequences, query, 64)) < TOLERANCE[torch.float32]
    assert not arrived.any()
