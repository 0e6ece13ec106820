"""transformers' own processors give the same logits and keep the same ids, where the documentation says so."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from transformers.generation import logits_process as theirs

from nanofn.batch.row_sampling import RowSampling
from sampling.exact import adjusted, filtered

VOCAB_SIZE = 13
DISTINCT = st.lists(st.integers(-400, 400), min_size=VOCAB_SIZE, max_size=VOCAB_SIZE, unique=True)
"""In hundredths: no two logits tie, and none is too close to another for fp32."""

IDS = st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=8)


def kept(scores):
    """The ids that are left."""
    return {place for place, score in enumerate(scores[0].tolist()) if score > -torch.inf}


@settings(max_examples=100)
@given(
    hundredths=DISTINCT,
    temperature=st.sampled_from([0.5, 1.0, 1.9]),
    top_k=st.integers(1, VOCAB_SIZE),
    top_p=st.sampled_from([0.1234, 0.5678, 0.9012, 1.0]),
    min_p=st.sampled_from([0.0123, 0.2345]),
)
def test_filters_keep_the_same_ids(hundredths, temperature, top_k, top_p, min_p):
    """Temperature, then top-k, top-p and min-p, each on what the one before has left."""
    scores = torch.tensor([hundredths]) / 100
    logits = scores[0].tolist()
    chain = [theirs.TemperatureLogitsWarper(temperature), theirs.TopKLogitsWarper(top_k)]
    chain += [theirs.TopPLogitsWarper(top_p)] if top_p < 1 else []
    chain.append(theirs.MinPLogitsWarper(min_p))
    for processor in chain:
        scores = processor(None, scores)
    sampling = RowSampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    probabilities = filtered(logits, sampling)
    assert {place for place, p in enumerate(probabilities) if p > 0} == kept(scores)
    torch.testing.assert_close(scores.softmax(1)[0].tolist(), probabilities, rtol=1e-5, atol=1e-6)


@given(hundredths=DISTINCT, prompt=IDS, output=IDS, penalty=st.sampled_from([0.5, 1.3]))
def test_the_repetition_penalty_is_the_same(hundredths, prompt, output, penalty):
    """Prompt and output count, and the sign decides between division and multiplication."""
    logits = torch.tensor([hundredths]) / 100
    found = theirs.RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([[*prompt, *output]]), logits)
    expected = adjusted(logits[0].tolist(), RowSampling(repetition_penalty=penalty), prompt, output)
    torch.testing.assert_close(found[0].tolist(), expected, rtol=1e-5, atol=1e-6)


@given(hundredths=DISTINCT, output=IDS)
def test_bad_words_bans_and_biases_are_the_same(hundredths, output):
    """The last token of a run whose beginning the output ends with; end tokens before min_tokens; a bias by id."""
    logits, words = torch.tensor([hundredths]) / 100, [[3], [1, 2], [4, 4, 5]]
    ids = torch.tensor([output])
    banned = theirs.NoBadWordsLogitsProcessor(words)(ids, logits)
    sampling = RowSampling(bad_words=tuple(map(tuple, words)))
    assert banned[0].tolist() == pytest.approx(adjusted(logits[0].tolist(), sampling, (), output))
    early = theirs.MinNewTokensLengthLogitsProcessor(0, 4, [6, 7])(ids, logits)
    sampling = RowSampling(min_tokens=4, end_token_ids=(6, 7))
    assert early[0].tolist() == pytest.approx(adjusted(logits[0].tolist(), sampling, (), output))
    biased = theirs.SequenceBiasLogitsProcessor({(5,): 2.5, (8,): -1.0})(ids, logits)
    sampling = RowSampling(logit_bias=((5, 2.5), (8, -1.0)))
    assert biased[0].tolist() == pytest.approx(adjusted(logits[0].tolist(), sampling, (), output), abs=1e-6)


def test_they_keep_all_that_tie_at_the_last_place():
    """The one difference among filters: their top-k of two keeps three equal logits, ours exactly two."""
    scores = torch.tensor([[1.0, 3.0, 3.0, 3.0]])
    assert kept(theirs.TopKLogitsWarper(2)(None, scores)) == {1, 2, 3}
    ours = filtered(scores[0].tolist(), RowSampling(top_k=2))
    assert [place for place, p in enumerate(ours) if p > 0] == [1, 2]
