"""min_tokens: what ends an output is not sampled before; forced by a bias, it comes right after."""

import pytest

from nanofn import SamplingParams

PROMPT = [11, 12, 13]


def generate(llm, **fields):
    """The only output of a call whose bias forces some ids."""
    return llm.generate([PROMPT], SamplingParams(**{"max_tokens": 20, "seed": 2, **fields}))[0].outputs[0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("min_tokens", [0, 1, 4])
def test_a_forced_end_comes_after_min_tokens_others(min_tokens, temperature, llm):
    """The prompt does not count: one, two and five tokens in all, the end token last and only there."""
    eos = llm.tokenizer.eos_token_id
    found = generate(llm, logit_bias={eos: 1e9}, min_tokens=min_tokens, temperature=temperature)
    assert (min_tokens + 1, "stop") == (len(found.token_ids), found.finish_reason)
    assert found.token_ids.index(eos) == min_tokens


def test_every_token_that_would_end_is_held_back_and_no_other(llm):
    """Stop tokens of the caller's as well; with ignore_eos the end token itself is an ordinary one, and so is the last id."""
    eos, last = llm.tokenizer.eos_token_id, llm.tokenizer.vocab_size - 1
    found = generate(llm, logit_bias={eos: 1e9, 300: 1e9}, stop_token_ids=[300], min_tokens=3)
    assert not {eos, 300} & set(found.token_ids[:3])
    assert {found.token_ids[3]} <= {eos, 300}
    ignored = generate(llm, logit_bias={eos: 1e9}, min_tokens=3, max_tokens=5, ignore_eos=True)
    assert (eos,) * 5 == ignored.token_ids
    free = generate(llm, logit_bias={last: 1e9}, min_tokens=3, max_tokens=5, ignore_eos=True)
    assert (last,) * 5 == free.token_ids
