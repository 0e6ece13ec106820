"""The kernels' package where Triton is not installed."""

import os
import subprocess
import sys

PROGRAM = """
import sys
sys.modules["triton"] = None
import torch
from nanofn_kernels import _dispatch
from nanofn_kernels.norm_rope_store import norm_rope_store
from nanofn_kernels.paged_decode import paged_decode, scratch_size
from nanofn_kernels.paged_prefill import paged_prefill
from nanofn_kernels.work_list import work_list

assert not _dispatch.HAS_TRITON
ints = lambda *values: torch.tensor(values, dtype=torch.int32)
cache = torch.randn(2, 16, 1, 32)
table, rows, lengths = ints(1, 0).reshape(1, 2), ints(0), ints(20)
items, blocks, count = torch.zeros(1, 8, dtype=torch.int32), torch.zeros(1, 2, dtype=torch.int32), ints(0)
work_list(table, rows, lengths, 64, 16, 1, items, blocks, count)
assert int(count) == 1 and blocks.tolist() == [[1, 0]]
query = norm_rope_store(torch.randn(1, 4 * 32), None, None, torch.ones(50, 32), ints(19), torch.tensor([3]), cache, cache, 2, 1e-6)
scratch = torch.zeros(scratch_size(1, 2, 32))
decoded = paged_decode(query, cache, cache, table, rows, lengths, items, blocks, count, scratch, ints(0), 0.2, 64)
prefilled = paged_prefill(query, cache, cache, table, rows, ints(0, 1), lengths, 0.2)
assert torch.allclose(decoded, prefilled, atol=1e-6)
"""


def test_every_op_runs_its_reference() -> None:
    """The modules import, and each op computes on the CPU."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
