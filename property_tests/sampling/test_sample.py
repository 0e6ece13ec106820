"""Sampling: greedy where the temperature says so, elsewhere the Gumbel-max trick, each row for itself."""

import pytest
import torch
from hypothesis import given, strategies as st

import nanofn.sampling.sample as module
from nanofn.sampling.sample import sample
from nanofn_kernels.reference.noise import gumbel_noise

VOCAB_SIZE = 37


def batch(num_rows, *, temperature, seed=0):
    """Random logits and one of everything else per row."""
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(num_rows, VOCAB_SIZE, generator=generator) * 3,
        torch.full((num_rows,), float(temperature)),
        torch.arange(num_rows) * 7919 - 5,
        torch.arange(num_rows) + 100,
        torch.arange(num_rows) % 3,
    )


@pytest.mark.parametrize("temperature", [0.0, 9e-6])
def test_a_temperature_below_1e_5_is_greedy(temperature):
    """The largest logit wins."""
    logits, *rest = batch(9, temperature=temperature)
    assert sample(logits, *rest).tolist() == logits.argmax(1).tolist()


def test_the_lowest_id_wins_a_tie():
    """Equal logits give the same token on every machine."""
    logits, *rest = batch(4, temperature=0.0)
    logits[:, 11] = logits[:, 5] = logits[:, 29] = 50.0
    assert sample(logits, *rest).tolist() == [5] * 4


@pytest.mark.parametrize("temperature", [1e-5, 0.7, 1.0, 2.5])
def test_a_warm_row_takes_the_largest_noisy_logit(temperature):
    """`argmax(logits / temperature + noise)`, with the noise of (seed, position, child)."""
    logits, temperatures, seeds, positions, children = batch(20, temperature=temperature)
    noisy = logits * (1 / temperatures).unsqueeze(1) + gumbel_noise(seeds, positions, children, VOCAB_SIZE)
    assert sample(logits, temperatures, seeds, positions, children).tolist() == noisy.argmax(1).tolist()


@given(order=st.permutations(range(12)), size=st.integers(1, 12))
def test_a_row_does_not_depend_on_its_batch(order, size):
    """Any subset of rows in any order, greedy and warm mixed: each row's token is what it is in the whole batch."""
    arguments = batch(12, temperature=1.0)
    arguments[1][::3] = 0.0
    rows = torch.tensor(order[:size])
    assert sample(*(x[rows] for x in arguments)).tolist() == sample(*arguments)[rows].tolist()


def test_a_greedy_batch_draws_no_noise(monkeypatch):
    """Noise is the expensive part of sampling, and only warm rows pay for it."""
    drawn = []
    original = module.sample_rows

    def watched(logits, *rest):
        drawn.append(len(logits))
        return original(logits, *rest)

    monkeypatch.setattr(module, "sample_rows", watched)
    sample(*batch(5, temperature=0.0))
    arguments = batch(5, temperature=1.0)
    arguments[1][:3] = 0.0
    sample(*arguments)
    assert drawn == [2]


def test_samples_follow_the_softmax():
    """Over 20,000 positions each token comes as often as its probability says, within five standard deviations."""
    num_rows = 20_000
    logits = torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(3)) * 2
    tokens = sample(
        logits.expand(num_rows, VOCAB_SIZE),
        torch.full((num_rows,), 0.8),
        torch.full((num_rows,), 1234),
        torch.arange(num_rows),
        torch.zeros(num_rows, dtype=torch.int64),
    )
    expected = torch.softmax(logits.double() / 0.8, 0) * num_rows
    found = torch.bincount(tokens.long(), minlength=VOCAB_SIZE)
    assert ((found - expected).abs() <= 5 * expected.sqrt() + 5).all()
