"""Log-probabilities of tokens against float64."""

import pytest
import torch
from hypothesis import given, strategies as st

from nanofn.sampling.logprobs import token_logprobs


@given(
    vocab_size=st.sampled_from([1, 5, 255, 256, 257, 1_000, 3_001]),
    num_top=st.sampled_from([0, 1, 2, 5, 20, 10**9]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    num_rows=st.integers(1, 4),
    spread=st.sampled_from([0.1, 3.0, 30.0]),
    seed=st.integers(0, 999),
)
def test_they_are_log_softmax_its_ranks_and_its_largest(vocab_size, num_top, dtype, num_rows, spread, seed):
    """Whether the likeliest are looked for in few chunks or in all; of ids that tie, any may come."""
    random = torch.Generator().manual_seed(seed)
    num_top = min(num_top, vocab_size)
    logits = (torch.randn((num_rows, vocab_size), generator=random) * spread).to(dtype)
    token_ids = torch.randint(0, vocab_size, (num_rows,), generator=random)
    logprob, rank, top_ids, top_logprobs = token_logprobs(logits, token_ids, num_top)
    expected = logits.double().log_softmax(1)
    chosen = logits.gather(1, token_ids.unsqueeze(1))
    torch.testing.assert_close(logprob.double(), expected.gather(1, token_ids.unsqueeze(1))[:, 0], rtol=2e-6, atol=2e-6)
    assert ((logits > chosen).sum(1) + 1).tolist() == rank.tolist()
    assert top_ids.shape == top_logprobs.shape == (num_rows, num_top)
    assert torch.equal(logits.gather(1, top_ids), logits.sort(1, descending=True).values[:, :num_top])
    assert all(len(set(ids)) == num_top for ids in top_ids.tolist())
    torch.testing.assert_close(top_logprobs.double(), expected.gather(1, top_ids), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("num_finite", [1, 3])
def test_ids_without_any_probability_come_last_and_none_beyond_the_vocabulary(num_finite):
    """Fewer finite logits than ids that are asked for, in a vocabulary that fills no chunk."""
    logits = torch.full((1, 1_030), -torch.inf)
    logits[0, -num_finite:] = torch.arange(num_finite, dtype=torch.float32)
    _, rank, top_ids, top_logprobs = token_logprobs(logits, torch.tensor([0]), 4)
    assert rank.tolist() == [num_finite + 1]
    assert top_ids[0, :num_finite].tolist() == list(range(1_029, 1_029 - num_finite, -1))
    assert top_ids.max() < 1_030
    assert len(set(top_ids[0].tolist())) == 4
    assert torch.isfinite(top_logprobs[0]).sum() == num_finite
