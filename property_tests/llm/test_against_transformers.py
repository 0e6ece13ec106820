"""Greedy tokens equal those of transformers in fp32, however the work is scheduled, on a CPU and on a GPU."""

from random import Random

import pytest
import torch

from nanofn import LLM, SamplingParams
from nanofn.llm.locate import embedded_model

NUM_PROMPTS, NUM_TOKENS = 64, 64
TIE = 1e-4
"""A difference is excused only where transformers' own two best logits are closer than this."""
PARAMS = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)


@pytest.fixture(scope="module")
def model(device):
    """The embedded model in transformers."""
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(embedded_model(), dtype=torch.float32).eval().to(device)
    loaded.generation_config.eos_token_id = None
    return loaded


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
def expected(prompts, model, device):
    """Per prompt, what transformers takes for best after each of our tokens, and by how much.

    One forward pass over prompt and output gives every step of greedy decoding at once: if at each position the best
    token is the one that follows, the output is transformers' own. `test_transformers_own_generate` does it literally.
    """
    with LLM(device=device, dtype="float32") as llm:
        outputs = [output.outputs[0].token_ids for output in llm.generate(prompts, PARAMS)]
    found = []
    with torch.inference_mode():
        for prompt, output in zip(prompts, outputs, strict=True):
            logits = model(torch.tensor([[*prompt, *output]], device=device)).logits[0, len(prompt) - 1 : -1]
            best = logits.topk(2)
            found.append((best.indices[:, 0].tolist(), (best.values[:, 0] - best.values[:, 1]).tolist()))
    assert_equal_but_for_ties(outputs, found)
    return found


def assert_equal_but_for_ties(outputs, expected, capsys=None):
    """Compare token by token, up to a tie of transformers' own; count the ties and say so."""
    num_ties = 0
    for place, (ours, (tokens, margins)) in enumerate(zip(outputs, expected, strict=True)):
        assert len(ours) == NUM_TOKENS
        differing = [position for position in range(NUM_TOKENS) if ours[position] != tokens[position]]
        if differing:
            assert margins[differing[0]] < TIE, f"prompt {place} differs at output {differing[0]}"
            num_ties += 1
    if capsys is not None:
        with capsys.disabled():
            print(f" ({num_ties} ties)", end="")
    assert num_ties <= 1


SMALL_POOL = {"num_kv_blocks": 36, "block_size": 16, "max_model_len": 577}
QUICK = {
    "all at once": {},
    "depth 1": {"depth": 1},
    "depth 3": {"depth": 3},
    "no prefix cache": {"enable_prefix_caching": False},
    "blocks of 16, depth 1": {"block_size": 16, "depth": 1},
}
LONG = {
    "chunks of 7": {"max_num_batched_tokens": 7},
    "chunks of 7, no prefix cache, depth 1": {
        "max_num_batched_tokens": 7,
        "enable_prefix_caching": False,
        "depth": 1,
    },
    "a pool so small that it preempts": SMALL_POOL,
    "the same with chunks of 7 at depth 1": SMALL_POOL | {"max_num_batched_tokens": 7, "depth": 1},
    "the same without prefix cache": SMALL_POOL | {"enable_prefix_caching": False},
}
FEW, ALL = slice(0, None, 5), slice(None)
"""Thirteen of the prompts, and all: where all would take long, they are for `nox -s prove`."""

few_or_all = pytest.mark.parametrize(
    "chosen", [pytest.param(FEW, id="few"), pytest.param(ALL, id="all", marks=pytest.mark.slow)]
)


def run(options, prompts, device):
    """Generate with an engine of these options."""
    with LLM(device=device, dtype="float32", **options) as llm:
        return llm.generate(prompts, PARAMS)


@few_or_all
@pytest.mark.parametrize("name", QUICK)
def test_greedy_tokens_are_those_of_transformers(name, chosen, prompts, expected, device, capsys):
    """Many prompts in one call: the same tokens. All 64 have been compared once by `expected`; on a GPU they always are."""
    chosen = ALL if device == "cuda" else chosen
    outputs = run(QUICK[name], prompts[chosen], device)
    assert_equal_but_for_ties([output.outputs[0].token_ids for output in outputs], expected[chosen], capsys)


@few_or_all
@pytest.mark.parametrize("name", LONG)
def test_chunks_and_preemption_change_no_token(name, chosen, prompts, expected, device, capsys):
    """Cut into chunks of 7 tokens, or in a pool that holds little more than one sequence: the same tokens."""
    outputs = run(LONG[name], prompts[chosen], device)
    assert_equal_but_for_ties([output.outputs[0].token_ids for output in outputs], expected[chosen], capsys)
    if "num_kv_blocks" in LONG[name]:
        assert sum(output.metrics.num_preemptions for output in outputs) > 0


@few_or_all
@pytest.mark.parametrize("depth", [1, 2])
def test_one_prompt_at_a_time_gives_the_same_tokens(depth, chosen, prompts, expected, device, capsys):
    """One call after another, the prefix cache filling up from call to call."""
    with LLM(device=device, dtype="float32", depth=depth) as llm:
        outputs = [llm.generate(prompt, PARAMS)[0] for prompt in prompts[chosen]]
    assert any(output.num_cached_tokens > 0 for output in outputs)
    assert_equal_but_for_ties([output.outputs[0].token_ids for output in outputs], expected[chosen], capsys)


@pytest.mark.slow
def test_transformers_own_generate_gives_these_tokens(model, prompts, expected, device, capsys):
    """The literal comparison: transformers' greedy generate, one prompt after another."""
    found = []
    with torch.inference_mode():
        for prompt in prompts:
            ids = torch.tensor([prompt], device=device)
            options = {"max_new_tokens": NUM_TOKENS, "do_sample": False, "pad_token_id": 0}
            found.append(model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, len(prompt) :].tolist())
    assert_equal_but_for_ties(found, expected, capsys)
