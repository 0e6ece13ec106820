"""Adjustments of logits against their definitions in float64."""

import math

import pytest
import torch
from hypothesis import given, strategies as st

from nanofn.batch.row_sampling import RowSampling
from nanofn.sampling.adjust import allow_only, forbid, penalise
from sampling.exact import adjusted

VOCAB_SIZE = 11
LOGITS = st.lists(
    st.one_of(st.floats(-30, 30, width=32), st.sampled_from([0.0, -math.inf])),
    min_size=VOCAB_SIZE,
    max_size=VOCAB_SIZE,
)
IDS = st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=20)


def ids(values):
    """Token ids as the device has them."""
    return torch.tensor(values, dtype=torch.int64)


@given(
    logits=LOGITS,
    prompt=IDS,
    output=IDS,
    repetition=st.floats(0.1, 3),
    presence=st.floats(-2, 2),
    frequency=st.floats(-2, 2),
)
def test_penalties_are_what_they_are_defined_to_be(logits, prompt, output, repetition, presence, frequency):
    """Id by id in float64: division or multiplication by sign, presence once, frequency per time."""
    penalties = {
        "repetition_penalty": repetition,
        "presence_penalty": presence,
        "frequency_penalty": frequency,
    }
    expected = adjusted(logits, RowSampling(**penalties), prompt, output)
    found = penalise(
        torch.tensor(logits),
        ids(prompt),
        ids(output),
        repetition=repetition,
        presence=presence,
        frequency=frequency,
    )
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-6, atol=1e-5)


@given(logits=LOGITS, chosen=IDS.filter(len))
def test_allowing_and_forbidding_are_each_others_complement(logits, chosen):
    """Allowed ids keep their logits to the bit and all others have -inf; with `forbid` it is the other way round."""
    row, inside = torch.tensor(logits), set(chosen)
    only, rest = allow_only(row, ids(chosen)).tolist(), forbid(row, ids(chosen)).tolist()
    assert [logit if place in inside else -math.inf for place, logit in enumerate(logits)] == only
    outside = [-math.inf if place in inside else logit for place, logit in enumerate(logits)]
    assert (outside if max(outside) > -math.inf else logits) == rest


def test_the_prompt_counts_for_repetition_alone():
    """Prompt 5 5 5, no output yet: presence and frequency change nothing, repetition changes id 5 alone, by its sign."""
    for logit, penalised in ((1.0, 0.5), (-1.0, -2.0)):
        flat = torch.full((8,), logit)
        off = penalise(flat, ids([5, 5, 5]), ids([]), repetition=1.0, presence=1.5, frequency=1.5)
        on = penalise(flat, ids([5, 5, 5]), ids([]), repetition=2.0, presence=1.5, frequency=1.5)
        assert off.tolist() == flat.tolist()
        assert on.tolist() == [penalised if place == 5 else logit for place in range(8)]


@pytest.mark.parametrize("vocab_size", [4096, 151_936])
def test_exactly_the_allowed_ids_of_a_large_vocabulary_are_left(vocab_size):
    """200 allowed ids, also where the row is a slice of a wider buffer: their values are kept to the bit."""
    wide = torch.randn(3, vocab_size + 8, generator=torch.Generator().manual_seed(0))
    chosen = torch.randperm(vocab_size, generator=torch.Generator().manual_seed(1))[:200]
    row = wide[:, :vocab_size][1]
    found = allow_only(row, chosen)
    assert torch.isfinite(found).sum() == 200
    assert torch.equal(found[chosen], row[chosen])
    assert torch.equal(found, allow_only(row.clone(), chosen))
