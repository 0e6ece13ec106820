"""Decode attention against float64, and what it must not read, write or depend on."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from nanofn_kernels.errors import ArgumentError, DtypeError, ShapeError, StrideError
from nanofn_kernels.paged_decode import choose_launch, launch_paged_decode, paged_decode
from nanofn_kernels.paged_prefill import paged_prefill
from nanofn_kernels.reference.paged_decode import paged_decode as reference
from nanofn_kernels.work_list import NO_SPLIT
from ops.paged import DEVICE, TOLERANCE, Sequences, decode, error, make_work, near_and_far

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32


def exact(sequences: Sequences, query: torch.Tensor) -> torch.Tensor:
    """The same in float64."""
    nothing = torch.zeros(0)
    return reference(
        query.double(), sequences.k_cache.double(), sequences.v_cache.double(), sequences.table, sequences.rows,
        sequences.seq_lens, nothing, nothing, nothing, nothing, nothing, query.shape[2] ** -0.5, NO_SPLIT,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("lengths", "split", "kv_heads", "group", "head_dim", "block_size", "dtype"),
    [
        ([1], NO_SPLIT, 1, 1, 32, 16, F32),
        ([0, 63, 64, 65], NO_SPLIT, 1, 2, 64, 64, F32),
        ([63, 64, 65, 0], 64, 1, 4, 64, 16, F16),
        ([129, 1], 64, 2, 2, 128, 64, BF16),
        ([15, 16, 17], NO_SPLIT, 1, 5, 80, 16, F16),
        ([200], 128, 1, 7, 96, 256, F32),
        ([33, 70], 64, 1, 8, 192, 1, BF16),
        ([130], 64, 1, 16, 256, 16, F16),
        ([70], 64, 1, 32, 64, 64, F32),
        ([2500], 64, 1, 3, 32, 64, F32),
        # Items begin within these blocks.
        ([200, 130], 64, 1, 2, 64, 24, F32),
        ([200], 64, 1, 2, 64, 96, BF16),
        ([140], 64, 1, 2, 64, 5, F16),
    ],
)
def test_it_equals_float64(lengths, split, kv_heads, group, head_dim, block_size, dtype) -> None:
    """Within the written tolerance, at tile and split edges, for every kind of head, block and type."""
    sequences = Sequences(lengths, kv_heads=kv_heads, head_dim=head_dim, block_size=block_size, dtype=dtype)
    query = sequences.queries(len(lengths), kv_heads * group)
    assert error(decode(sequences, query, split), exact(sequences, query)) < TOLERANCE[dtype]


@settings(max_examples=12)
@given(
    lengths=st.lists(st.sampled_from([0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 190]), min_size=1, max_size=3),
    split=st.sampled_from([64, 128, NO_SPLIT]),
    group=st.sampled_from([1, 2, 3, 4]),
    head_dim=st.sampled_from([32, 64, 80]),
    block_size=st.sampled_from([1, 16, 64, 256, 5, 24, 96]),
    dtype=st.sampled_from([F16, BF16, F32]),
    stride=st.sampled_from([0, 3]),
)
def test_any_small_batch_equals_float64(lengths, split, group, head_dim, block_size, dtype, stride) -> None:
    """As above, for drawn shapes; queries may be a view of a wider tensor."""
    sequences = Sequences(lengths, kv_heads=1, head_dim=head_dim, block_size=block_size, dtype=dtype)
    query = sequences.queries(len(lengths), group, stride=stride)
    found = decode(sequences, query, split)
    assert error(found, exact(sequences, query)) < TOLERANCE[dtype]
    assert not found[sequences.seq_lens == 0].any()


@pytest.mark.parametrize(
    ("num_seqs", "block_size", "split"),
    [
        (1, 32, 64), (1, 8, NO_SPLIT), (4, 16, 64), (4, 8, 128), (4, 24, 64), (16, 16, NO_SPLIT), (32, 128, NO_SPLIT),
        (64, 4, NO_SPLIT), (256, 2, NO_SPLIT), (256, 16, NO_SPLIT),
    ],
)  # fmt: skip
def test_every_launch_of_the_table_equals_float64(num_seqs, block_size, split) -> None:
    """With a tile within a block, of 2, 4 or 8 blocks, of more, and one that cuts blocks."""
    sequences = Sequences([31, 0, 190, 64, 65], kv_heads=1, head_dim=64, block_size=block_size, dtype=F16)
    query = sequences.queries(5, 2)
    work = make_work(sequences.table, sequences.rows, sequences.seq_lens, split, block_size, 2, 1, 64)
    found = launch_paged_decode(
        query, sequences.k_cache, sequences.v_cache, sequences.table.shape[1], *work, 64**-0.5, split,
        launch=choose_launch(num_seqs, 8, 64, 2, fixed_tile=False),
    )  # fmt: skip
    assert error(found, exact(sequences, query)) < TOLERANCE[F16]
    assert not found[1].any()


def test_padding_reads_and_writes_nothing() -> None:
    """An entry of length 0 gives zeros though its row is -1 and its query NaN, and changes no bit of the others."""
    sequences = Sequences([40, 0, 70], kv_heads=1, head_dim=64, block_size=16, dtype=F32)
    query = sequences.queries(3, 2)
    query[1] = float("nan")
    before = sequences.k_cache.clone(), sequences.v_cache.clone()
    found = decode(sequences, query, 64)
    assert not found[1].any()
    assert error(found[::2], exact(sequences, query)[::2]) < TOLERANCE[F32]
    for cache, old in zip((sequences.k_cache, sequences.v_cache), before, strict=True):
        assert torch.equal(cache.nan_to_num(7), old.nan_to_num(7))


def test_entries_may_share_a_row() -> None:
    """Several positions of one sequence in one batch are several entries with one row."""
    sequences = Sequences([90], kv_heads=1, head_dim=64, block_size=16, dtype=F32)
    sequences.rows = sequences.rows.repeat(3)
    sequences.seq_lens = torch.tensor([90, 1, 66], dtype=torch.int32, device=DEVICE)
    query = sequences.queries(3, 2)
    assert error(decode(sequences, query, 64), exact(sequences, query)) < TOLERANCE[F32]


@pytest.mark.parametrize("split", [64, NO_SPLIT])
@pytest.mark.parametrize("dtype", [F16, BF16, F32])
def test_bits_do_not_depend_on_batch_mates(split, dtype) -> None:
    """At one split size an entry's bits are the same alone and in a batch of others."""
    sequences = Sequences([70, 129, 0, 64], kv_heads=1, head_dim=32, block_size=16, dtype=dtype)
    query = sequences.queries(4, 2)
    together = decode(sequences, query, split)
    for entry in (0, 1, 3):
        alone = Sequences([70, 129, 0, 64], kv_heads=1, head_dim=32, block_size=16, dtype=dtype)
        alone.rows, alone.seq_lens = alone.rows[entry : entry + 1], alone.seq_lens[entry : entry + 1]
        assert torch.equal(decode(alone, query[entry : entry + 1], split), together[entry : entry + 1])


@pytest.mark.parametrize(("block_size", "dtype"), [(16, F32), (64, F32), (16, F16), (8, BF16), (24, F16)])
def test_programs_that_take_several_items_change_no_bit(block_size, dtype, monkeypatch) -> None:
    """One multiprocessor's programs, 3 or 1, ask for each item's block ids, as one program for each does."""
    sequences = Sequences([129, 70, 64], kv_heads=2, head_dim=32, block_size=block_size, dtype=dtype)
    query = sequences.queries(3, 4)
    expected = decode(sequences, query, 64)
    monkeypatch.setattr("nanofn_kernels.paged_decode._num_multiprocessors", lambda device: 1)
    assert torch.equal(decode(sequences, query, 64), expected)
    assert error(expected, exact(sequences, query)) < TOLERANCE[dtype]


def test_caches_may_be_strided() -> None:
    """K and V may be views of one tensor, with other tensors between their heads."""
    plain = Sequences([50, 20], kv_heads=2, head_dim=64, block_size=16, dtype=F32)
    query = plain.queries(2, 4)
    expected = decode(plain, query, 64)
    both = torch.full((plain.k_cache.shape[0], 16, 3, 2, 64), float("nan"), device=DEVICE)
    both[:, :, :2, 0], both[:, :, :2, 1] = plain.k_cache, plain.v_cache
    plain.k_cache, plain.v_cache = both[:, :, :2, 0], both[:, :, :2, 1]
    assert torch.equal(decode(plain, query, 64), expected)


def test_scales_multiply_what_is_stored() -> None:
    """Stored keys and values that are too small by a factor give the result of whole ones."""
    plain = Sequences([70, 20], kv_heads=1, head_dim=64, block_size=16, dtype=F32)
    query = plain.queries(2, 2)
    expected = decode(plain, query, 64)
    work = make_work(plain.table, plain.rows, plain.seq_lens, 64, 16, 2, 1, 64)
    k_cache, v_cache = plain.k_cache / 2, plain.v_cache / 4
    sequences = (plain.table, plain.rows, plain.seq_lens)
    found = paged_decode(query, k_cache, v_cache, *sequences, *work, 0.125, 64, k_scale=2.0, v_scale=4.0)
    assert error(found, expected) < TOLERANCE[F32]


def test_offsets_are_64_bits_wide() -> None:
    """The last of more than 2**31 cache elements is found."""
    near, far = near_and_far()
    query = near.queries(1, 8)
    assert torch.equal(decode(far, query, NO_SPLIT), decode(near, query, NO_SPLIT))


def arguments(**changed: object) -> dict[str, object]:
    """Valid arguments by name, some of them replaced."""
    sequences = Sequences([20, 5], kv_heads=2, head_dim=64, block_size=16, dtype=F32)
    names = ("items", "blocks", "count", "scratch", "arrived")
    work = make_work(sequences.table, sequences.rows, sequences.seq_lens, 64, 16, 4, 2, 64)
    plain = {
        "query": sequences.queries(2, 4), "k_cache": sequences.k_cache, "v_cache": sequences.v_cache, "block_table": sequences.table,
        "rows": sequences.rows, "seq_lens": sequences.seq_lens, "scale": 0.125, "split_size": 64,
    }  # fmt: skip
    return plain | dict(zip(names, work, strict=True)) | changed


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("query", torch.zeros(2, 4, 48), ShapeError),
        ("query", torch.zeros(2, 3, 64), ShapeError),
        ("query", torch.zeros(2, 4, 64, dtype=torch.float64), DtypeError),
        ("query", torch.zeros(2, 64, 4).transpose(1, 2), StrideError),
        ("v_cache", torch.zeros(1, 16, 2, 64), ShapeError),
        ("k_cache", torch.zeros(5, 16, 2, 64, dtype=F16), DtypeError),
        ("rows", torch.zeros(2, dtype=torch.int64), DtypeError),
        ("seq_lens", torch.zeros(3, dtype=torch.int32), ShapeError),
        ("items", torch.zeros(1, 8, dtype=torch.int32), ShapeError),
        ("blocks", torch.zeros(2, 1, dtype=torch.int32), ShapeError),
        ("split_size", 65, ShapeError),
    ],
)
def test_a_wrong_argument_is_named(name, value, kind) -> None:
    """The error says which argument, what was expected and what was there."""
    with pytest.raises(ArgumentError) as caught:
        paged_decode(**arguments(**{name: value.to(DEVICE) if isinstance(value, torch.Tensor) else value}))
    assert type(caught.value) is kind
    assert caught.value.name in {name, "k_cache"}
    assert str(caught.value.actual) in str(caught.value)


def test_the_op_is_well_formed() -> None:
    """Schema, fake and declared mutation agree with what the op does."""
    keywords = arguments()
    torch.library.opcheck(
        torch.ops.nanofn.paged_decode.default, (), keywords, test_utils=("test_schema", "test_faketensor")
    )


@pytest.mark.gpu
def test_a_graph_captured_at_length_1_serves_length_2000() -> None:
    """Nothing about the lengths is frozen into a captured graph."""
    long = Sequences([2000, 700], kv_heads=8, head_dim=128, block_size=64, dtype=BF16)
    query = long.queries(2, 16)
    for split in (NO_SPLIT, 128):
        work = make_work(long.table, long.rows, long.seq_lens, split, 64, 16, 8, 128)
        lengths = torch.ones_like(long.seq_lens)

        def step() -> torch.Tensor:
            from nanofn_kernels.work_list import work_list

            work_list(long.table, long.rows, lengths, split, 64, 8, *work[:3])
            return paged_decode(
                query, long.k_cache, long.v_cache, long.table, long.rows, lengths, *work, 128**-0.5, split
            )

        step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = step()
        graph.replay()
        lengths.copy_(long.seq_lens)
        graph.replay()
        assert error(out, exact(long, query)) < TOLERANCE[BF16]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [F16, BF16, F32])
@pytest.mark.parametrize("split", [128, 256])
def test_bits_are_the_same_alone_and_in_a_batch_of_256(dtype, split) -> None:
    """At a constant split size, whatever launch the batch gets, and in every one of 20 repetitions."""
    lengths = [int(length) for length in torch.randint(1, 1500, (255,), generator=torch.Generator().manual_seed(1))] + [
        0
    ]
    sequences = Sequences(lengths, kv_heads=8, head_dim=128, block_size=16, dtype=dtype, max_seq_len=2048)
    query = sequences.queries(256, 16)
    together = decode(sequences, query, split)
    assert error(together, exact(sequences, query)) < TOLERANCE[dtype]
    for _ in range(20):
        assert torch.equal(decode(sequences, query, split), together)
    rows, seq_lens = sequences.rows, sequences.seq_lens
    for start, stop in ((3, 4), (10, 18), (0, 64), (100, 200)):
        sequences.rows, sequences.seq_lens = rows[start:stop], seq_lens[start:stop]
        assert torch.equal(decode(sequences, query[start:stop], split), together[start:stop])


@pytest.mark.gpu
def test_bits_are_the_same_beside_a_prefill() -> None:
    """At a constant split size, while prefill attention of other sequences runs on the same multiprocessors."""
    sequences = Sequences([1500, 900, 70, 1], kv_heads=8, head_dim=128, block_size=64, dtype=BF16)
    query = sequences.queries(4, 16)
    alone = decode(sequences, query, 256)
    others = Sequences([1500, 1400], kv_heads=8, head_dim=128, block_size=64, dtype=BF16, seed=1)
    prompts = others.queries(2900, 16)
    bounds = torch.tensor([0, 1500, 2900], dtype=torch.int32, device=DEVICE)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    for _ in range(10):
        with torch.cuda.stream(side):
            paged_prefill(
                prompts, others.k_cache, others.v_cache, others.table, others.rows, bounds, others.seq_lens, 128**-0.5
            )
        assert torch.equal(decode(sequences, query, 256), alone)
    torch.cuda.synchronize()
