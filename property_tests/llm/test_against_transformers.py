"""Greedy tokens equal those of transformers in fp32, however the work is scheduled."""

from random import Random

import pytest
import torch

from nanofn import LLM, SamplingParams
from nanofn.llm.assemble import embedded_model

NUM_PROMPTS, NUM_TOKENS = 64, 64
TIE = 1e-4
"""A difference is excused only where transformers' own two best logits are closer than this."""


@pytest.fixture(scope="module")
def prompts():
    """64 prompts of 1 to 512 token ids; a third of them share a prefix of 100."""
    random = Random(2)
    lengths = [1, 2, 63, 64, 65, 127, 128, 129, 511, 512]
    lengths += [random.randint(1, 512) for _ in range(NUM_PROMPTS - len(lengths))]
    shared = [random.randrange(10, 1000) for _ in range(100)]
    found = [[random.randrange(10, 1000) for _ in range(length)] for length in lengths]
    return [(shared + prompt)[:512] if place % 3 == 0 else prompt for place, prompt in enumerate(found)]


@pytest.fixture(scope="module")
def expected(prompts):
    """Per prompt, transformers' greedy tokens and the margin between its two best logits at each."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(embedded_model(), dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    found = []
    with torch.inference_mode():
        for prompt in prompts:
            ids = torch.tensor([prompt])
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=NUM_TOKENS,
                do_sample=False,
                pad_token_id=0,
                return_dict_in_generate=True,
                output_logits=True,
            )
            best = torch.stack(out.logits).squeeze(1).topk(2).values
            found.append((out.sequences[0, len(prompt) :].tolist(), (best[:, 0] - best[:, 1]).tolist()))
    return found


def assert_equal_but_for_ties(outputs, expected, capsys):
    """Compare token by token, up to a tie of transformers' own; count the ties and say so."""
    num_ties = 0
    for place, (output, (tokens, margins)) in enumerate(zip(outputs, expected, strict=True)):
        ours = output.outputs[0].token_ids
        assert len(ours) == NUM_TOKENS
        for position, (our, their) in enumerate(zip(ours, tokens, strict=True)):
            if our != their:
                assert margins[position] < TIE, f"prompt {place} differs at output {position}, margin {margins[position]}"
                num_ties += 1
                break
    with capsys.disabled():
        print(f" ({num_ties} ties)", end="")
    assert num_ties <= 1


PARAMS = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
VARIANTS = {
    "batched": {},
    "depth 1": {"depth": 1},
    "without prefix cache": {"enable_prefix_caching": False},
    "chunks of 7": {"max_num_batched_tokens": 7},
    "chunks of 7 without prefix cache at depth 1": {
        "max_num_batched_tokens": 7,
        "enable_prefix_caching": False,
        "depth": 1,
    },
    "blocks of 16": {"block_size": 16},
    "a pool so small that it preempts": {"num_kv_blocks": 36, "block_size": 16, "max_model_len": 577},
    "a small pool, chunks of 7, depth 1": {
        "num_kv_blocks": 36,
        "block_size": 16,
        "max_model_len": 577,
        "max_num_batched_tokens": 7,
        "depth": 1,
    },
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_tokens_are_those_of_transformers(variant, prompts, expected, capsys):
    """All prompts in one call, under different limits: the same 4,096 tokens."""
    with LLM(**VARIANTS[variant]) as llm:
        outputs = llm.generate(prompts, PARAMS)
    assert_equal_but_for_ties(outputs, expected, capsys)
    num_preemptions = sum(output.metrics.num_preemptions for output in outputs)
    assert (num_preemptions > 0) == ("small" in variant)


@pytest.mark.parametrize("depth", [1, 2])
def test_one_prompt_at_a_time_gives_the_same_tokens(depth, prompts, expected, capsys):
    """64 calls of one prompt each, the prefix cache filling up from call to call."""
    with LLM(depth=depth) as llm:
        outputs = [llm.generate(prompt, PARAMS)[0] for prompt in prompts]
    assert any(output.num_cached_tokens > 0 for output in outputs)
    assert_equal_but_for_ties(outputs, expected, capsys)
