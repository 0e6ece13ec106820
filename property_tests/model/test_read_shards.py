"""Safetensors files are read in spans by several threads, and give what is in them."""

import os
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, strategies as st
from safetensors.torch import save_file

from model.checkpoints import make_fixture
from nanofn.device import read_shards as module
from nanofn.device.checkpoint import load_checkpoint
from nanofn.device.read_shards import read_shards, spans_of
from nanofn.device.shards import find_tensors
from nanofn.device.stored import DTYPES, StoredTensor
from nanofn.errors import CheckpointError

CPU = torch.device("cpu")
ITEM_BYTES = {name: dtype.itemsize for name, dtype in DTYPES.items()}


@st.composite
def stored_tensors(draw):
    """Tensors in up to three files, some with gaps before them: what lies there is not wanted."""
    stored = {}
    for file in range(draw(st.integers(1, 3))):
        place = draw(st.integers(8, 40))
        for number in range(draw(st.integers(1, 6))):
            dtype = draw(st.sampled_from(sorted(ITEM_BYTES)))
            shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=2)))
            num_bytes = torch.Size(shape).numel() * ITEM_BYTES[dtype]
            place += draw(st.sampled_from([0, 0, 0, 6]))
            stored[f"{file}.{number}"] = StoredTensor(
                file=Path(str(file)), dtype=dtype, shape=shape, first_byte=place, num_bytes=num_bytes
            )
            place += num_bytes
    return stored


@given(stored=stored_tensors(), max_bytes=st.integers(0, 200))
def test_spans_hold_every_row_once_and_keep_their_size(stored, max_bytes):
    """In the order of the files; a span is without gaps, of one dtype, and at most as long as allowed, or one row."""
    found = []
    for span in spans_of(stored, max_bytes):
        place = span.first_byte
        for rows in span.rows:
            tensor = stored[rows.name]
            row_bytes = tensor.num_bytes // tensor.shape[0]
            assert (span.file, span.dtype, place) == (
                tensor.file,
                tensor.dtype,
                tensor.first_byte + rows.first * row_bytes,
            )
            assert rows.shape == (rows.num_bytes // row_bytes, *tensor.shape[1:])
            found += [(rows.name, row) for row in range(rows.first, rows.first + rows.shape[0])]
            place += rows.num_bytes
        assert span.num_bytes == place - span.first_byte
        assert span.num_bytes <= max_bytes or sum(rows.shape[0] for rows in span.rows) == 1
    assert found == [(name, row) for name, tensor in stored.items() for row in range(tensor.shape[0])]


@given(stored=stored_tensors(), max_bytes=st.integers(100, 400))
def test_neighbours_are_read_together(stored, max_bytes):
    """A span ends only where the file does, a gap or another dtype follows, or the next rows are too many."""
    for one, other in pairwise(spans_of(stored, max_bytes)):
        is_next = (one.file, one.dtype, one.first_byte + one.num_bytes) == (other.file, other.dtype, other.first_byte)
        assert not (is_next and one.num_bytes + other.rows[0].num_bytes <= max_bytes)


@pytest.mark.parametrize("num_cores", [1, 2, 16])
@pytest.mark.parametrize("span_bytes", [1, 100, 1 << 20])
def test_what_is_read_is_what_is_stored(num_cores, span_bytes, tmp_path, monkeypatch):
    """Two files, three dtypes, odd lengths: rows of 12 bytes behind one of 2, where no view of four-byte numbers would fit."""
    monkeypatch.setattr(module, "SPAN_BYTES", span_bytes)
    monkeypatch.setattr(os, "cpu_count", lambda: num_cores)
    generator = torch.Generator().manual_seed(0)
    shapes = [(1,), (7, 3), (129,), (40, 5)]
    tensors = {
        f"{number}.{name}": torch.randn(shape, generator=generator).to(dtype)
        for number, shape in enumerate(shapes)
        for name, dtype in DTYPES.items()
    }
    stored = {}
    for file, is_in in (("a", lambda name: name < "2"), ("b", lambda name: name >= "2")):
        save_file({name: tensor for name, tensor in tensors.items() if is_in(name)}, tmp_path / "model.safetensors")
        found = find_tensors(tmp_path)
        (tmp_path / "model.safetensors").rename(tmp_path / file)
        for name, tensor in found.items():
            stored[name] = StoredTensor(
                file=tmp_path / file, dtype=tensor.dtype, shape=tensor.shape, first_byte=tensor.first_byte,
                num_bytes=tensor.num_bytes,
            )  # fmt: skip
    places = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    for piece in read_shards(stored, CPU):
        places[piece.name][piece.first_row : piece.first_row + piece.rows.shape[0]] = piece.rows
    assert all(torch.equal(places[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize(("num_cores", "file_bytes"), [(1, 5_000), (2, 70_000), (8, 40_000), (16, 500_000)])
def test_buffers_hold_no_more_than_the_largest_file(num_cores, file_bytes, tmp_path, monkeypatch):
    """Nor more than nine whole spans; each is a power of two, which is what pinned memory would be rounded up to."""
    monkeypatch.setattr(module, "SPAN_BYTES", 1 << 14)
    monkeypatch.setattr(os, "cpu_count", lambda: num_cores)
    save_file({f"x{number}": torch.zeros(file_bytes // 32, 8) for number in range(3)}, tmp_path / "model.safetensors")
    sizes = []
    empty = torch.empty

    def recorded(size, **options):
        sizes.append(size)
        return empty(size, **options)

    monkeypatch.setattr(torch, "empty", recorded)
    stored = find_tensors(tmp_path)
    total = sum(tensor.num_bytes for tensor in stored.values())
    assert sum(piece.num_bytes for piece in read_shards(stored, CPU)) == total
    assert len(sizes) == min(num_cores, module.MAX_READERS) + 1
    assert sum(1 << (size - 1).bit_length() for size in sizes) <= min(total, 9 << 14)


def test_nothing_to_read_is_nothing():
    """No tensors, no pieces."""
    assert list(read_shards({}, CPU)) == []


@pytest.mark.parametrize("remove", [False, True])
def test_a_file_that_changes_after_its_header_was_read_is_an_error(remove, tmp_path):
    """It is cut, or gone: the message names the file and a tensor, and no thread is left hanging."""
    path = tmp_path / "model.safetensors"
    save_file({f"x{number}": torch.zeros(1_000) for number in range(9)}, path)
    stored = find_tensors(tmp_path)
    if remove:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-5_000])
    with pytest.raises(
        CheckpointError, match=r"model\.safetensors cannot be read at x\d \(.*; copy or download it again"
    ):
        list(read_shards(stored, CPU))


def test_reading_may_be_given_up(tmp_path):
    """Whoever takes no more pieces ends the threads."""
    save_file({f"x{number}": torch.zeros(1_000) for number in range(9)}, tmp_path / "model.safetensors")
    pieces = read_shards(find_tensors(tmp_path), CPU)
    next(pieces)
    pieces.close()
    with pytest.raises(StopIteration):
        next(pieces)


def test_overlapping_tensors_are_refused_by_the_header(tmp_path):
    """Two tensors on the same bytes, all sizes right: the message says where one begins and what lies before it ends."""
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.zeros(4), "b": torch.zeros(4)}, path)
    data = path.read_bytes()
    path.write_bytes(
        data.replace(b"[16,32]", b"[ 0,32]").replace(
            b'"shape":[4],"data_offsets":[ 0', b'"shape":[8],"data_offsets":[ 0'
        )
    )
    with pytest.raises(CheckpointError, match=r"is damaged: b begins at byte \d+, what lies before it ends at \d+"):
        find_tensors(tmp_path)


def pinned_bytes():
    """Host memory that torch's allocator has pinned, in use or not. Without a CUDA context there are no such counts."""
    torch.cuda.init()
    return torch.cuda.memory.host_memory_stats()["allocated_bytes.current"]


@pytest.mark.gpu
def test_a_gpu_gets_the_same_and_keeps_no_host_memory(tmp_path, monkeypatch):
    """Small spans, many of them, through pinned buffers that are reused; what was pinned for it is given back."""
    monkeypatch.setattr(module, "SPAN_BYTES", 4_096)
    make_fixture("qwen3", tmp_path)
    torch._C._host_emptyCache()
    before = pinned_bytes()
    pieces = read_shards(find_tensors(tmp_path), torch.device("cuda"))
    assert next(pieces).rows.is_pinned()
    assert pinned_bytes() > before
    pieces.close()
    for dtype in (None, torch.bfloat16):
        here, there = (load_checkpoint(tmp_path, dtype=dtype, device=device).params for device in ("cpu", "cuda"))
        assert torch.equal(here.embedding, there.embedding.cpu())
        for ours, theirs in zip(here.layers, there.layers, strict=True):
            for name in ("qkv_weight", "output_weight", "gate_up_weight", "down_weight", "input_norm", "q_norm"):
                assert torch.equal(getattr(ours, name), getattr(theirs, name).cpu())
    assert pinned_bytes() <= before


def test_the_fixture_loads_through_any_span(tmp_path, monkeypatch):
    """The whole path with tiny spans: parameters joined of several tensors are filled from pieces of each."""
    make_fixture("qwen3 moe", tmp_path)
    whole = load_checkpoint(tmp_path).params
    monkeypatch.setattr(module, "SPAN_BYTES", 300)
    cut = load_checkpoint(tmp_path).params
    for ours, theirs in zip(whole.layers, cut.layers, strict=True):
        assert torch.equal(ours.gate_up_weight, theirs.gate_up_weight)
        assert torch.equal(ours.qkv_weight, theirs.qkv_weight)
