"""Sums by chunks against the reference, and the reference against float64."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from nanofn_kernels.chunk_sums import CHUNK, CHUNKS_A_PROGRAM, chunk_sums
from nanofn_kernels.errors import DtypeError, ShapeError
from nanofn_kernels.reference.chunk_sums import chunk_sums as reference
from ops.paged import DEVICE


@settings(max_examples=12)
@given(
    rows=st.integers(0, 3),
    vocab_size=st.sampled_from([1, CHUNK - 1, CHUNK, CHUNK + 1, CHUNK * CHUNKS_A_PROGRAM + 7]),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
    spread=st.sampled_from([0.0, 3.0, 40.0]),
    seed=st.integers(0, 999),
)
def test_sums_equal_the_reference(rows, vocab_size, dtype, spread, seed) -> None:
    """Rows with NaN behind them, ties with the token, -inf here and there and in whole chunks."""
    random = torch.Generator().manual_seed(seed)
    wide = torch.randn((rows, vocab_size + 3), generator=random) * spread
    wide[torch.rand(wide.shape, generator=random) < 0.2] = -torch.inf
    wide[:, :CHUNK] = -torch.inf if seed % 3 == 0 else 1.0
    wide[:, vocab_size:] = torch.nan
    logits = wide.to(dtype).to(DEVICE)[:, :vocab_size]
    token_ids = torch.randint(0, vocab_size, (rows,), generator=random).to(DEVICE)
    peaks, mass, above = chunk_sums(logits, token_ids)
    expected_peaks, expected_mass, expected_above = reference(logits, token_ids)
    assert torch.equal(peaks, expected_peaks)
    assert torch.equal(above, expected_above)
    torch.testing.assert_close(mass, expected_mass, rtol=1e-6, atol=0)


def test_the_reference_is_the_definition() -> None:
    """Largest, sum of exponentials in float64, and number above the token's, of each chunk."""
    logits = torch.randn((2, CHUNK + 9), generator=torch.Generator().manual_seed(1)) * 5
    token_ids = torch.tensor([3, CHUNK + 8])
    peaks, mass, above = reference(logits, token_ids)
    for row, token_id in enumerate(token_ids):
        for place, chunk in enumerate((logits[row, :CHUNK], logits[row, CHUNK:])):
            assert peaks[row, place] == chunk.max()
            expected = torch.exp(chunk.double() - chunk.max().double()).sum().item()
            assert mass[row, place].item() == pytest.approx(expected, rel=1e-6)
            assert above[row, place] == (chunk > logits[row, token_id]).sum()


def test_arguments_that_do_not_fit_are_named() -> None:
    """A type, a size, and no id at all."""
    logits = torch.zeros((2, 5))
    with pytest.raises(DtypeError, match="token_ids"):
        chunk_sums(logits, torch.zeros(2, dtype=torch.int32))
    with pytest.raises(ShapeError, match="token_ids"):
        chunk_sums(logits, torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ShapeError, match="logits"):
        chunk_sums(logits[:, :0], torch.zeros(2, dtype=torch.int64))
