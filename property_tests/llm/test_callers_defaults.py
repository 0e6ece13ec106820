"""What a program has told torch for its own tensors does not reach the engine."""

import pytest
import torch

from nanofn import LLM, SamplingParams

PROMPTS = [[1 + (7 * place + step) % 900 for step in range(length)] for place, length in enumerate((1, 40, 5))]
PARAMS = SamplingParams(
    temperature=0.9, top_p=0.9, seed=3, max_tokens=6, ignore_eos=True, repetition_penalty=1.2, logprobs=2
)


@pytest.fixture(autouse=True)
def restored():
    """The defaults are as before afterwards."""
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)
    torch.set_default_device(None)


def tokens():
    """Every output of a new engine."""
    with LLM(device="cpu", max_model_len=96, max_num_seqs=3) as llm:
        return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, PARAMS)]


@pytest.mark.parametrize("is_fused", [False, True])
def test_defaults_of_the_program_change_no_token(is_fused, request):
    """Other dtypes, and another device: "meta" holds no numbers, so whatever forgot its device would fail."""
    if is_fused:
        request.getfixturevalue("fused")
    expected = tokens()
    for dtype in (torch.bfloat16, torch.float64):
        torch.set_default_dtype(dtype)
        assert tokens() == expected
    torch.set_default_device("meta")
    assert tokens() == expected
