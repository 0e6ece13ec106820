"""Prefill attention against float64, and that chunks do not matter."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from nanofn_kernels.errors import ArgumentError, DtypeError, ShapeError
from nanofn_kernels.paged_prefill import paged_prefill
from nanofn_kernels.reference.paged_prefill import paged_prefill as reference
from ops.paged import DEVICE, TOLERANCE, Sequences, decode, error, near_and_far

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32


def bounds_of(counts: list[int]) -> torch.Tensor:
    """Where each chunk starts in the pack, and where the last one ends."""
    return torch.tensor([0, *counts]).cumsum(0).int().to(DEVICE)


def prefill(sequences: Sequences, query: torch.Tensor, counts: list[int], *, exact: bool = False) -> torch.Tensor:
    """Attention of the last `counts` tokens of each sequence."""
    op = reference if exact else paged_prefill
    tensors = (query, sequences.k_cache, sequences.v_cache)
    query, k_cache, v_cache = (tensor.double() for tensor in tensors) if exact else tensors
    return op(
        query,
        k_cache,
        v_cache,
        sequences.table,
        sequences.rows,
        bounds_of(counts),
        sequences.seq_lens,
        query.shape[2] ** -0.5,
    )


@pytest.mark.parametrize(
    ("chunks", "kv_heads", "group", "head_dim", "block_size", "dtype"),
    [
        ([(1, 1)], 1, 1, 32, 16, F32),
        ([(65, 65), (0, 0), (3, 130)], 1, 2, 64, 64, F16),
        ([(31, 32), (33, 33), (1, 64)], 1, 4, 64, 16, F32),
        ([(40, 70)], 2, 2, 128, 64, BF16),
        ([(20, 90)], 1, 5, 80, 16, BF16),
        ([(9, 33)], 1, 7, 96, 256, F32),
        ([(5, 40)], 1, 8, 192, 1, F16),
        ([(17, 20)], 1, 16, 256, 16, F16),
        ([(3, 70)], 1, 32, 64, 64, F32),
    ],
)
def test_it_equals_float64(chunks, kv_heads, group, head_dim, block_size, dtype) -> None:
    """Within the written tolerance; tokens behind the last chunk are padding and give zeros."""
    counts = [count for count, _ in chunks]
    sequences = Sequences(
        [length for _, length in chunks], kv_heads=kv_heads, head_dim=head_dim, block_size=block_size, dtype=dtype
    )
    query = sequences.queries(sum(counts) + 3, kv_heads * group, stride=1)
    found = prefill(sequences, query, counts)
    assert error(found, prefill(sequences, query, counts, exact=True)) < TOLERANCE[dtype]
    assert not found[sum(counts) :].any()


@settings(max_examples=10)
@given(
    chunks=st.lists(
        st.tuples(st.integers(0, 40), st.sampled_from([0, 1, 31, 32, 63, 64, 65, 100])), min_size=1, max_size=3
    ),
    group=st.sampled_from([1, 2, 3]),
    block_size=st.sampled_from([1, 16, 64, 256, 5, 24, 96]),
    dtype=st.sampled_from([F16, BF16, F32]),
)
def test_any_small_batch_equals_float64(chunks, group, block_size, dtype) -> None:
    """As above, for drawn counts and prefixes that were computed before."""
    counts = [count for count, _ in chunks]
    lengths = [count + before if count else 0 for count, before in chunks]
    sequences = Sequences(lengths, kv_heads=1, head_dim=64, block_size=block_size, dtype=dtype)
    query = sequences.queries(sum(counts) + 1, group)
    assert error(prefill(sequences, query, counts), prefill(sequences, query, counts, exact=True)) < TOLERANCE[dtype]


def assert_same_bits(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal bit for bit on a GPU. The interpreter multiplies by a BLAS whose sums depend on where in a tile a row is."""
    assert (
        torch.equal(actual, expected)
        if DEVICE.type == "cuda"
        else error(actual, expected) < 0.1 * TOLERANCE[actual.dtype]
    )


def pieces(sequences: Sequences, query: torch.Tensor, cuts: list[int]) -> torch.Tensor:
    """The first sequence's prompt, computed in chunks that end at `cuts`, alone."""
    row, found = sequences.rows[:1], []
    for start, stop in zip([0, *cuts], [*cuts, query.shape[0]], strict=True):
        length = torch.tensor([stop], dtype=torch.int32, device=DEVICE)
        chunk = (
            query[start:stop],
            sequences.k_cache,
            sequences.v_cache,
            sequences.table,
            row,
            bounds_of([stop - start]),
            length,
        )
        found.append(paged_prefill(*chunk, query.shape[2] ** -0.5))
    return torch.cat(found)


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
@pytest.mark.parametrize("cuts", [[1], [64], [37, 38, 90]])
def test_bits_do_not_depend_on_chunks(dtype, cuts) -> None:
    """A token's bits are the same wherever its prompt was cut."""
    sequences = Sequences([100], kv_heads=1, head_dim=32, block_size=16, dtype=dtype)
    query = sequences.queries(100, 2)
    assert_same_bits(pieces(sequences, query, cuts), pieces(sequences, query, []))


@pytest.mark.parametrize("dtype", [F16, F32])
def test_bits_do_not_depend_on_batch_mates(dtype) -> None:
    """A token's bits are the same alone, behind another chunk and before one."""
    sequences = Sequences([60, 33, 90], kv_heads=1, head_dim=32, block_size=16, dtype=dtype)
    query = sequences.queries(60 + 33 + 7, 2)
    together = prefill(sequences, query, [60, 33, 7])
    assert_same_bits(together[:60], pieces(sequences, query[:60], []))
    sequences.rows, sequences.seq_lens = sequences.rows[1:2], sequences.seq_lens[1:2]
    assert_same_bits(together[60:93], prefill(sequences, query[60:93], [33]))


def test_caches_and_queries_may_be_strided() -> None:
    """K and V may be views of one tensor, and a token's heads a part of what lies beside them."""
    plain = Sequences([50, 20], kv_heads=2, head_dim=64, block_size=16, dtype=F32)
    query = plain.queries(60, 4, stride=3)
    expected = prefill(plain, query.contiguous(), [40, 20])
    both = torch.full((plain.k_cache.shape[0], 16, 3, 2, 64), float("nan"), device=DEVICE)
    both[:, :, :2, 0], both[:, :, :2, 1] = plain.k_cache, plain.v_cache
    plain.k_cache, plain.v_cache = both[:, :, :2, 0], both[:, :, :2, 1]
    assert not query.is_contiguous()
    assert_same_bits(prefill(plain, query, [40, 20]), expected)


def test_scales_multiply_what_is_stored() -> None:
    """Stored keys and values that are too small by a factor give the result of whole ones."""
    plain = Sequences([70], kv_heads=1, head_dim=64, block_size=16, dtype=F32)
    query = plain.queries(9, 2)
    rest = (plain.table, plain.rows, bounds_of([9]), plain.seq_lens, 0.125)
    expected = paged_prefill(query, plain.k_cache, plain.v_cache, *rest)
    found = paged_prefill(query, plain.k_cache / 2, plain.v_cache / 4, *rest, k_scale=2.0, v_scale=4.0)
    assert error(found, expected) < TOLERANCE[F32]


def test_offsets_are_64_bits_wide() -> None:
    """The last of more than 2**31 cache elements is found."""
    near, far = near_and_far()
    query = near.queries(2, 8)
    assert torch.equal(prefill(far, query, [2]), prefill(near, query, [2]))


def test_a_chunk_of_one_token_is_a_decode() -> None:
    """Both attentions agree on the last token."""
    sequences = Sequences([77, 5], kv_heads=1, head_dim=64, block_size=16, dtype=F32)
    query = sequences.queries(2, 2)
    assert error(prefill(sequences, query, [1, 1]), decode(sequences, query, 64).double()) < 2 * TOLERANCE[F32]


@pytest.mark.parametrize(
    ("name", "change", "kind"),
    [
        ("table", lambda x: x.long(), DtypeError),
        ("rows", lambda x: x[:0], ShapeError),
        ("seq_lens", lambda x: x[:1], ShapeError),
        ("v_cache", lambda x: x[:, :1], ShapeError),
    ],
)
def test_a_wrong_argument_is_named(name, change, kind) -> None:
    """The error says which argument it was."""
    sequences = Sequences([10, 20], kv_heads=1, head_dim=64, block_size=16, dtype=F32)
    query = sequences.queries(30, 2)
    setattr(sequences, name, change(getattr(sequences, name)))
    with pytest.raises(ArgumentError) as caught:
        prefill(sequences, query, [10, 20] if name != "rows" else [])
    assert type(caught.value) is kind
    assert caught.value.name == {"table": "block_table"}.get(name, name)


def test_the_op_is_well_formed() -> None:
    """Schema and fake agree with what the op does."""
    sequences = Sequences([10, 20], kv_heads=1, head_dim=64, block_size=16, dtype=F32)
    arguments = (
        sequences.queries(30, 2), sequences.k_cache, sequences.v_cache, sequences.table, sequences.rows, bounds_of([10, 20]),
        sequences.seq_lens, 0.125,
    )  # fmt: skip
    torch.library.opcheck(
        torch.ops.nanofn.paged_prefill.default, arguments, test_utils=("test_schema", "test_faketensor")
    )


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [F16, BF16, F32])
@pytest.mark.parametrize("block_size", [16, 64])
def test_bits_of_a_long_prompt_do_not_depend_on_chunks(dtype, block_size) -> None:
    """As above with whole heads and 1,500 tokens, beside other prompts."""
    sequences = Sequences([1500, 900, 64], kv_heads=8, head_dim=128, block_size=block_size, dtype=dtype)
    query = sequences.queries(1500 + 900 + 64, 16)
    together = prefill(sequences, query, [1500, 900, 64])
    assert error(together, prefill(sequences, query, [1500, 900, 64], exact=True)) < TOLERANCE[dtype]
    for cuts in ([], [512, 1024], [1, 700, 701], [1499]):
        assert torch.equal(pieces(sequences, query[:1500], cuts), together[:1500])
