"""Norms, rotation and store against float64, and what padding must not do."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from nanofn_kernels.errors import DtypeError, ShapeError, StrideError
from nanofn_kernels.norm_rope_store import norm_rope_store
from nanofn_kernels.reference.norm_rope_store import norm_rope_store as reference
from ops.paged import DEVICE, TOLERANCE, error

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
MAX_POSITION = 40_960


class Case:
    """Random arguments, with padding where a slot is -1."""

    def __init__(self, tokens: int, heads: int, kv_heads: int, head_dim: int, block_size: int, dtype: torch.dtype, *, norm: bool, seed: int = 0):  # fmt: skip
        random = torch.Generator().manual_seed(seed)
        width = (heads + 2 * kv_heads) * head_dim
        self.heads, self.dtype = heads, dtype
        self.qkv = torch.randn((tokens, width + 16), generator=random).to(dtype).to(DEVICE)[:, :width]
        weights = torch.rand((2, head_dim), generator=random).to(dtype).to(DEVICE) + 0.5
        self.weights = tuple(weights) if norm else (None, None)
        angles = torch.rand((MAX_POSITION, head_dim // 2), generator=random) * 6.28
        self.cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1).to(DEVICE)
        self.positions = torch.randint(0, MAX_POSITION, (tokens,), generator=random).int().to(DEVICE)
        self.positions[:1], self.positions[-1:] = 0, MAX_POSITION - 1
        blocks = tokens // block_size + 2
        self.slots = torch.randperm(blocks * block_size, generator=random)[:tokens].to(DEVICE)
        shape = (blocks, block_size, kv_heads, head_dim)
        self.caches = [torch.full(shape, float("nan"), dtype=dtype, device=DEVICE) for _ in range(2)]

    def run(self, op, tokens: slice = slice(None), scales: tuple[float, float] = (1.0, 1.0), *, exact: bool = False):
        """Query and caches after the op, from fresh caches; in float64 with `exact`."""
        caches = [cache.double() if exact else cache.clone() for cache in self.caches]
        qkv = self.qkv[tokens].double() if exact else self.qkv[tokens]
        query = op(
            qkv, *self.weights, self.cos_sin, self.positions[tokens], self.slots[tokens], *caches, self.heads, 1e-6, *scales
        )  # fmt: skip
        return query, *caches


@settings(max_examples=12)
@given(
    tokens=st.integers(1, 4), kv_heads=st.sampled_from([1, 2, 3]), group=st.sampled_from([1, 2, 5]),
    head_dim=st.sampled_from([32, 64, 80, 96, 128, 192, 256]), block_size=st.sampled_from([1, 16, 64]),
    dtype=st.sampled_from([F16, BF16, F32]), norm=st.booleans(), padding=st.booleans(),
)  # fmt: skip
def test_it_equals_float64(tokens, kv_heads, group, head_dim, block_size, dtype, norm, padding) -> None:
    """Queries and caches are within the written tolerance, and nothing but the slots is written."""
    case = Case(tokens, kv_heads * group, kv_heads, head_dim, block_size, dtype, norm=norm)
    if padding:
        case.slots[tokens // 2], case.positions[tokens // 2] = -1, -(2**30)
    for mine, expected in zip(case.run(norm_rope_store), case.run(reference, exact=True), strict=True):
        assert torch.equal(mine.isnan(), expected.isnan())
        assert error(mine.nan_to_num(0), expected.nan_to_num(0)) < TOLERANCE[dtype]


def test_padding_gives_zeros_and_stores_nothing() -> None:
    """A slot of -1 leaves both caches alone, whatever the token and its position are."""
    case = Case(3, 4, 2, 64, 16, F32, norm=True)
    case.slots[:], case.positions[:], case.qkv[:] = -1, 2**30, float("nan")
    query, k_cache, v_cache = case.run(norm_rope_store)
    assert not query.any()
    assert k_cache.isnan().all()
    assert v_cache.isnan().all()


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
def test_bits_do_not_depend_on_batch_mates(dtype) -> None:
    """A token gets the same bits alone and among others."""
    case = Case(5, 4, 2, 64, 16, dtype, norm=True)
    query, k_cache, _ = case.run(norm_rope_store)
    for token in range(5):
        alone, k_alone, _ = case.run(norm_rope_store, slice(token, token + 1))
        slot = int(case.slots[token])
        assert torch.equal(alone[0], query[token])
        assert torch.equal(k_alone[slot // 16, slot % 16], k_cache[slot // 16, slot % 16])


def test_values_are_copied_bit_for_bit() -> None:
    """A value that was stored is the value that came in."""
    case = Case(4, 2, 1, 64, 16, F16, norm=True)
    v_cache = case.run(norm_rope_store)[2]
    assert torch.equal(v_cache[case.slots // 16, case.slots % 16, 0], case.qkv[:, -64:])


def test_the_norm_comes_before_the_rotation() -> None:
    """Halves of a head are turned against each other after the norm: as the model's definition has it, element by element."""
    case = Case(1, 1, 1, 32, 16, F32, norm=True)
    case.positions[0] = 77
    x = case.qkv[0, :32].double()
    x = x / (x.square().mean() + 1e-6).sqrt() * case.weights[0].double()
    cos, sin = case.cos_sin[77, :16].double(), case.cos_sin[77, 16:].double()
    expected = torch.stack(
        [x[i] * cos[i % 16] + (-x[i + 16] if i < 16 else x[i - 16]) * sin[i % 16] for i in range(32)]
    )
    assert error(case.run(norm_rope_store)[0][0, 0], expected) < TOLERANCE[F32]


def test_scales_divide_what_is_stored() -> None:
    """Keys and values are divided by their scales, queries are not."""
    case = Case(2, 2, 1, 64, 16, F32, norm=True)
    plain, scaled = case.run(norm_rope_store), case.run(norm_rope_store, scales=(2.0, 4.0))
    assert torch.equal(plain[0], scaled[0])
    assert torch.equal(plain[1].nan_to_num(0) / 2, scaled[1].nan_to_num(0))
    assert torch.equal(plain[2].nan_to_num(0) / 4, scaled[2].nan_to_num(0))


def test_offsets_are_64_bits_wide() -> None:
    """The last of more than 2**31 cache elements is written as the last of few is."""
    blocks = 140_000
    case = Case(1, 2, 8, 128, 16, F16, norm=True)
    case.slots[0] = 16 * case.caches[0].shape[0] - 1
    _, *expected = case.run(norm_rope_store)
    caches = [torch.empty((blocks, 16, 8, 128), dtype=F16, device=DEVICE) for _ in range(2)]
    norm_rope_store(
        case.qkv,
        *case.weights,
        case.cos_sin,
        case.positions,
        torch.full_like(case.slots, 16 * blocks - 1),
        *caches,
        2,
        1e-6,
    )
    for cache, other in zip(caches, expected, strict=True):
        assert torch.equal(cache[-1, -1], other[-1, -1])


def test_no_tokens_are_no_work() -> None:
    """An empty pack gives an empty query."""
    case = Case(1, 2, 1, 64, 16, F32, norm=True)
    assert case.run(norm_rope_store, slice(0, 0))[0].shape == (0, 2, 64)


@pytest.mark.parametrize(
    ("name", "change", "kind"),
    [
        ("qkv", lambda x: x[:, :-1], ShapeError),
        ("qkv", lambda x: x.double(), DtypeError),
        ("cos_sin", lambda x: x.T.contiguous().T, StrideError),
        ("positions", lambda x: x.float(), DtypeError),
        ("slots", lambda x: x.int(), DtypeError),
    ],
)
def test_a_wrong_argument_is_named(name, change, kind) -> None:
    """The error says which argument it was."""
    case = Case(2, 2, 1, 64, 16, F32, norm=True)
    setattr(case, name, change(getattr(case, name)))
    with pytest.raises(kind) as caught:
        case.run(norm_rope_store)
    assert caught.value.name == {"slots": "slot_mapping"}.get(name, name)


def test_the_op_is_well_formed() -> None:
    """Schema, fake and declared mutation agree with what the op does."""
    case = Case(2, 2, 1, 64, 16, F32, norm=True)
    arguments = (
        case.qkv,
        *case.weights,
        case.cos_sin,
        case.positions,
        case.slots,
        *(c.nan_to_num(0) for c in case.caches),
        2,
        1e-6,
    )
    torch.library.opcheck(
        torch.ops.nanofn.norm_rope_store.default, arguments, test_utils=("test_schema", "test_faketensor")
    )
