"""Philox against published answers, and the noise's shape."""

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

from nanofn_kernels.reference.noise import gumbel, gumbel_noise, noise_words, philox

ALL_ONES = 0xFFFFFFFF
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ALL_ONES,) * 4, (ALL_ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
"""Counter, key and answer: the vectors of Random123, philox4x32 with 10 rounds."""


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_philox_gives_the_known_answers(counter, key, answer) -> None:
    """All three published vectors."""
    words = philox(tuple(torch.tensor([word]) for word in counter), tuple(torch.tensor([word]) for word in key))
    assert [int(word) for word in words] == list(answer)


@given(seed=st.integers(-(2**63), 2**63 - 1), position=st.integers(0, 2**31), child=st.integers(0, 100))
@settings(max_examples=20)
def test_an_id_owns_a_word_of_its_own_counter(seed: int, position: int, child: int) -> None:
    """Word i % 4 of the counter (i / 4, position, child, 0) under the seed's two halves, whatever else is drawn."""
    words = noise_words(torch.tensor([1, seed]), torch.tensor([5, position]), torch.tensor([0, child]), 11)[1]
    for token in (0, 3, 4, 10):
        counter = tuple(torch.tensor([word]) for word in (token // 4, position, child, 0))
        key = (torch.tensor([seed & ALL_ONES]), torch.tensor([(seed >> 32) & ALL_ONES]))
        assert int(words[token]) == int(philox(counter, key)[token % 4])


def test_noise_is_finite_and_fine_in_the_right_tail() -> None:
    """The extreme words give the documented range, and the least words give different noise."""
    noise = gumbel(torch.tensor([0, 1, 2, ALL_ONES]))
    assert noise.isfinite().all()
    exact = [-math.log(-math.log1p(-(word + 0.5) / 2**32)) for word in (0, 1, 2)]
    assert torch.allclose(noise[:3], torch.tensor(exact), atol=1e-5)
    assert float(noise.max()) < 22.9
    assert float(noise.min()) > -2.9


def test_noise_has_gumbel_moments() -> None:
    """Mean Euler's constant and variance pi^2 / 6, within four standard errors of 200,000 draws."""
    ids = torch.arange(20)
    noise = gumbel_noise(ids, ids * 3, ids * 0, 10_000).double()
    assert abs(float(noise.mean()) - 0.57722) < 4 * math.sqrt(math.pi**2 / 6 / 200_000)
    assert abs(float(noise.var()) - math.pi**2 / 6) < 4 * math.sqrt(4.4 * (math.pi**2 / 6) ** 2 / 200_000)
