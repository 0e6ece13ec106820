"""Row-wise operations against transformers and against float64."""

import pytest
import torch
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, Qwen3RotaryEmbedding, apply_rotary_pos_emb

from nanofn.model.config import from_dict
from nanofn.model.layers import rms_norm, rope, rope_tables, swiglu
from nanofn.model.rope import make_rope

CONFIG = Qwen3Config(
    vocab_size=8, hidden_size=64, intermediate_size=8, num_hidden_layers=1, num_attention_heads=4,
    num_key_value_heads=2, head_dim=32, rope_theta=1e6, max_position_embeddings=50_000,
)  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(5, 64), (3, 7, 32), (1, 64), (0, 64)])
def test_the_norm_is_that_of_transformers(dtype, shape):
    """Normalised in fp32, cast, then multiplied: within a few units in the last place of the dtype."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).mul_(3).to(dtype)
    norm = Qwen3RMSNorm(shape[-1], eps=1e-6).to(dtype)
    norm.weight.data = (1 + 0.2 * torch.randn(shape[-1], generator=torch.Generator().manual_seed(1))).to(dtype)
    with torch.no_grad():
        expected, found = norm(x), rms_norm(x, norm.weight, 1e-6)
    assert found.dtype == dtype
    torch.testing.assert_close(found, expected, rtol=4 * torch.finfo(dtype).eps, atol=0)


def test_the_norm_leaves_its_input_alone():
    """It works in place on its own tensors only."""
    x = torch.randn(4, 16)
    before = x.clone()
    rms_norm(x, torch.full((16,), 2.0), 1e-6)
    rms_norm(x, None, 1e-6)
    assert torch.equal(x, before)


@pytest.mark.parametrize("first_position", [0, 1000, 40_000])
def test_rotation_is_that_of_transformers(first_position):
    """The same frequencies and angles, bit for bit, and the same rotated heads up to one rounding."""
    positions = torch.arange(first_position, first_position + 20)
    ours = make_rope(from_dict(CONFIG.to_dict()))
    theirs = Qwen3RotaryEmbedding(CONFIG)
    assert torch.equal(ours.inverse_frequencies, theirs.inv_freq)
    cos, sin = rope_tables(positions, ours)
    their_cos, their_sin = theirs(torch.zeros(1), positions[None])
    assert torch.equal(cos[:, 0], their_cos[0])
    assert torch.equal(sin[:, 0, 16:], their_sin[0, :, 16:])
    x = torch.randn(20, 4, 32, generator=torch.Generator().manual_seed(0))
    expected, _ = apply_rotary_pos_emb(x.transpose(0, 1)[None], x.transpose(0, 1)[None], their_cos, their_sin)
    torch.testing.assert_close(rope(x, cos, sin), expected[0].transpose(0, 1), rtol=1e-6, atol=1e-6)


def test_angles_far_out_are_near_the_exact_ones():
    """At position 40,000 fp32 angles err by less than 2e-3 radians against float64."""
    positions = torch.tensor([40_000, 40_959])
    ours = make_rope(from_dict(CONFIG.to_dict()))
    exact = 1.0 / 1e6 ** (torch.arange(0, 32, 2, dtype=torch.float64) / 32)
    cos, _ = rope_tables(positions, ours)
    assert (cos[:, 0, :16] - torch.cos(positions[:, None] * exact)).abs().max() < 4e-3


def test_rotation_keeps_lengths_and_relative_angles():
    """A head's length stays, and two heads' product depends on how far apart they stand, not on where."""
    ours = make_rope(from_dict(CONFIG.to_dict()))
    q, k = (torch.randn(1, 1, 32, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))

    def product(first, second):
        rotated = [rope(x, *rope_tables(torch.tensor([position]), ours)) for x, position in ((q, first), (k, second))]
        torch.testing.assert_close(rotated[0].norm(), q.norm())
        return (rotated[0] * rotated[1]).sum()

    torch.testing.assert_close(product(9, 4), product(105, 100), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gated_unit_multiplies_silu_by_the_other_half(dtype):
    """The first half is the gate."""
    x = torch.randn(6, 20, generator=torch.Generator().manual_seed(0)).to(dtype)
    wide = x.double()
    expected = wide[:, :10] * torch.sigmoid(wide[:, :10]) * wide[:, 10:]
    torch.testing.assert_close(swiglu(x).double(), expected, rtol=4 * torch.finfo(dtype).eps, atol=1e-6)
