"""Every kind of decoder through the whole engine: greedy tokens are those of transformers."""

from random import Random

import pytest
import torch

from model.checkpoints import FAMILIES, make_fixture
from nanofn import LLM, SamplingParams
from nanofn.device.fused_executor import FusedExecutor
from nanofn.llm.locate import embedded_model

VOCABULARY = 1024
NUM_TOKENS = 12
TIE = 1e-4
WIDE = {"hidden_size": 192, "head_dim": 32}
"""Heads that the kernels take."""


@pytest.fixture(
    params=[
        "plain",
        "fused",
        pytest.param("captured", marks=pytest.mark.gpu),
        pytest.param("launched", marks=pytest.mark.gpu),
    ]
)
def options(request, monkeypatch):
    """The executors: plain torch; the GPU's with references of its kernels; the GPU's itself, with graphs and without."""
    if request.param == "fused":
        monkeypatch.setattr("nanofn.llm.assemble.EagerExecutor", FusedExecutor)
    if request.param in ("plain", "fused"):
        return {"device": "cpu"}
    return {"device": "cuda", "enforce_eager": request.param == "launched", "gpu_memory_utilization": 0.3}


@torch.inference_mode()
@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_tokens_are_those_of_transformers(name, options, tmp_path, request):
    """Six prompts, in chunks of at most sixteen tokens a step; a difference only where transformers has a tie."""
    sizes = {} if "plain" in request.node.name else WIDE
    model = make_fixture(name, tmp_path, vocab_size=VOCABULARY, **sizes).model
    random = Random(name)
    prompts = [[random.randrange(VOCABULARY) for _ in range(length)] for length in (1, 5, 16, 17, 33, 40)]
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    options |= {"max_model_len": 64, "max_num_seqs": 4, "max_num_batched_tokens": 16, "block_size": 8}
    with LLM(tmp_path, tokenizer=embedded_model(), **options) as llm:
        outputs = [list(output.outputs[0].token_ids) for output in llm.generate(prompts, params)]
    for prompt, tokens in zip(prompts, outputs, strict=True):
        assert len(tokens) == NUM_TOKENS
        best = model(torch.tensor([prompt + tokens]), use_cache=False).logits[0, len(prompt) - 1 : -1].topk(2)
        differing = (best.indices[:, 0] != torch.tensor(tokens)).nonzero().flatten().tolist()
        assert not differing or (best.values[differing[0], 0] - best.values[differing[0], 1]).item() < TIE
