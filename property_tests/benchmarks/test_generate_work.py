"""The works of the benchmark of generate() are what they are said to be."""

import pytest

from generate_work import REPORTED, STRUCTURED, VARIANTS, WORKS, runs_of, sampling_params

VOCAB_SIZE = 151_936


def test_the_standard_work_has_its_known_size():
    """As published with nano-vllm's benchmark: 256 requests, 142,827 prompt and 133,966 output tokens."""
    (run,) = runs_of("standard", "full", VOCAB_SIZE, 0)
    assert (256, 142_827, 133_966) == (len(run.requests), run.num_prompt_tokens, run.num_output_tokens)


@pytest.mark.parametrize("size", ["smoke", "full"])
def test_no_prompt_begins_like_another_ones(size):
    """In all works, variants and repeats, no two prompts share a first block of 4 tokens, but those with a shared prefix."""
    beginnings = [
        (tuple(prompt[:4]), (work, shift) if work == "shared-prefix" else (run.name, shift, number))
        for work in WORKS
        for shift in range(4)
        for run in runs_of(work, size, 2_048 if size == "smoke" else VOCAB_SIZE, shift)
        for number, prompt in enumerate(run.prompts)
    ]
    assert len({beginning for beginning, _ in beginnings}) == len({owner for _, owner in beginnings})


@pytest.mark.parametrize("work", WORKS)
def test_ids_are_in_the_vocabulary_and_lengths_are_fixed(work):
    """Every id is below the vocabulary's size, and every output ends by its length alone."""
    for run in runs_of(work, "full", 5_000, 4_999):
        assert all(0 <= token_id < 5_000 for prompt in run.prompts for token_id in prompt)
        for (_, num_output), params in zip(run.requests, run.params, strict=True):
            assert params.max_tokens == num_output
            assert params.ignore_eos or params.min_tokens == num_output


def test_variants_of_sampling():
    """A quarter of the rows has a schema in one variant, and one alone reports log-probabilities."""
    rows = {variant: [sampling_params(variant, 9, row) for row in range(8)] for variant in VARIANTS}
    assert {STRUCTURED: 2} == {
        variant: count
        for variant, params in rows.items()
        if (count := sum(each.structured_outputs is not None for each in params))
    }
    assert [REPORTED] == [variant for variant, params in rows.items() if all(each.logprobs == 5 for each in params)]
