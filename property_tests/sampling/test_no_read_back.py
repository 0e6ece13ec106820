"""What a step does for adjusted and reported rows is queued: the same operations for any number of rows, nothing read."""

from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nanofn.batch.masks import NO_MASKS, Masks
from nanofn.batch.row_sampling import RowSampling
from nanofn.batch.row_start import RowStart
from nanofn.config import Limits
from nanofn.device.read_logprobs import sampled_logprobs
from nanofn.device.row_params import RowParams
from nanofn.device.tables import allocate_tables, send, start_rows

VOCAB_SIZE = 300
METHODS = ("tolist", "numpy")
"""Methods that read a tensor of a CPU without any operation."""

READS = {
    "aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::masked_select", "aten::_to_copy", *METHODS
}  # fmt: skip
"""What waits for a GPU, or may: a copy between devices would be `_to_copy`."""

ASKED = RowSampling(
    repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2, logit_bias=((0, 1.0), (11, -1.0)),
    bad_words=((5, 2), (7,)), min_tokens=9, allowed_token_ids=tuple(range(40)), end_token_ids=(9,), logprobs=5,
)  # fmt: skip


class Names(TorchDispatchMode):
    """Notes the name of every operation of torch's."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.names.append(operation.name())
        return operation(*args, **(kwargs or {}))


class Operations(TorchDispatchMode):
    """Notes the name of every operation. One of ours is one operation, whatever its reference does."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __enter__(self):
        reading = {name: lambda *_, name=name: self.names.append(name) for name in METHODS}
        self.patches = patch.multiple(torch.Tensor, **reading)
        self.patches.start()
        return super().__enter__()

    def __exit__(self, *error):
        self.patches.stop()
        return super().__exit__(*error)

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        is_cast = operation.name() == "aten::_to_copy" and kwargs.get("device") in (None, torch.device("cpu"))
        is_mask = operation.name().startswith("aten::index") and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        self.names.append("aten::nonzero" if is_mask else "cast" if is_cast else operation.name())
        return operation(*args, **kwargs)


def started(count):
    """Rows that ask for everything, two output tokens each."""
    limits = Limits(
        block_size=4, num_blocks=count * 4, max_num_seqs=count, max_num_batched_tokens=count, max_model_len=16
    )
    tables = allocate_tables(limits, torch.device("cpu"))
    rows = RowParams(tables, VOCAB_SIZE)
    starts = [RowStart(row, row, (1, 2, 3, 5, 5), 3, ASKED, seed=0, child=0) for row in range(count)]
    with Operations() as seen:
        start_rows(tables, starts)
        rows.start(starts)
    return rows, seen.names


def operations(count):
    """What a step of so many rows does."""
    rows, _ = started(count)
    logits = torch.zeros((count, VOCAB_SIZE), dtype=torch.bfloat16)
    at, positions = torch.arange(count, dtype=torch.int32), torch.full((count,), 5, dtype=torch.int32)
    masks = Masks(tuple(range(count)), np.full((count, 10), 0xFFFF_FFFF, dtype=np.uint32))
    mask_of = masks.places_of(range(count))
    with Operations() as seen:
        rows.adjusted(logits, at, positions, NO_MASKS, mask_of)
        rows.adjusted(logits, at, positions, masks, mask_of)
        for first in (0, 1):
            here = range(count)[first:]
            sampled_logprobs(logits, torch.zeros(count, dtype=torch.int32), here, here, rows.reported)
    return seen.names


def test_a_step_of_many_rows_queues_what_one_of_two_does_and_reads_nothing():
    """Adjusting with and without masks, reporting all rows and some."""
    few = operations(2)
    assert few == operations(40)
    assert "nanofn::adjust_logits" in few
    assert "nanofn::chunk_sums" in few
    assert not READS & set(few)


def test_starting_many_rows_queues_what_starting_two_does():
    """All tables of all rows together."""
    assert started(2)[1] == started(40)[1]
    assert not READS & set(started(2)[1])


@pytest.mark.parametrize("read", [lambda x: x.tolist(), lambda x: x.sum().item(), lambda x: x[x > 0], bool])
def test_a_read_is_noticed(read):
    """What would stop a step is in the list."""
    with Operations() as seen:
        read(torch.ones(1))
    assert READS & set(seen.names)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "array", [np.arange(200_000, dtype=np.int32).reshape(40, 5_000), np.arange(12.0).reshape(3, 4).T]
)
def test_what_is_sent_is_copied_by_no_operation_on_the_host(array):
    """Torch would share a large copy out to threads, which spin for milliseconds afterwards."""
    with Names() as operations:
        sent = send(array, torch.device("cuda"))
    copies = [name for name in operations.names if any(word in name for word in ("copy", "clone", "pin_memory"))]
    assert copies == ["aten::_to_copy"]
    assert torch.equal(sent.cpu(), torch.from_numpy(array.copy()))
