"""Extreme parameters: numbers that no device can hold, and restrictions that leave nothing to choose."""

import pytest

from nanofn import SamplingParams
from nanofn.errors import ParameterError

PROMPT = [11, 12, 13, 14]
SHORT = SamplingParams(max_tokens=4, seed=3, ignore_eos=True)


def ids(llm, **fields):
    """The output of one short call."""
    return llm.generate([PROMPT], SHORT.replace(**fields))[0].outputs[0].token_ids


def test_a_bias_beyond_32_bits_forces_or_forbids(llm):
    """Greedy and warm: the id comes at every position, or at none."""
    for temperature in (0.0, 1e-5, 1.0):
        assert ids(llm, temperature=temperature, logit_bias={77: 1e300}) == (77,) * 4
        assert 77 not in ids(llm, temperature=temperature, logit_bias={77: -1e300})


def test_numbers_beyond_the_devices_mean_the_most_it_can_do(llm):
    """A huge top-k is off, a huge temperature is flat and still forbids, a huge penalty is finite."""
    assert ids(llm, top_k=2**70) == ids(llm)
    allowed = list(range(40, 60))
    flat = ids(llm, temperature=1e300, allowed_token_ids=allowed, n=1)
    assert set(flat) <= set(allowed)
    assert len(set(flat)) > 1
    for penalty in (1e-300, 1e300):
        assert len(ids(llm, repetition_penalty=penalty, temperature=0.0)) == 4


def test_keys_that_are_no_ids_are_a_typed_error():
    """A bias with keys of several kinds is refused by name."""
    with pytest.raises(ParameterError, match="logit_bias"):
        SamplingParams(logit_bias={"a": 1.0, 3: 1.0})


def test_more_children_than_anybody_wants_are_refused():
    """n has a bound, so that a slip of the finger does not make a billion sequences."""
    assert SamplingParams(n=16_384).n == 16_384
    with pytest.raises(ParameterError, match="n is 16385"):
        SamplingParams(n=16_385)


def test_a_ban_that_would_leave_nothing_gives_way(llm):
    """Two ids allowed, both of them bad words or too early ends: one of the two comes all the same, never a third."""
    word, other = (llm.tokenizer.decode([place]) for place in (300, 301))
    assert llm.tokenizer.encode_plain(word) == [300], "a test of this needs words of one token"
    assert llm.tokenizer.encode_plain(other) == [301], "a test of this needs words of one token"
    for temperature in (0.0, 1.0):
        banned = ids(llm, temperature=temperature, allowed_token_ids=[300, 301], bad_words=[word, other])
        assert set(banned) <= {300, 301}
        early = ids(llm, temperature=temperature, allowed_token_ids=[300], stop_token_ids=[300], min_tokens=2)
        assert early == (300, 300, 300)
