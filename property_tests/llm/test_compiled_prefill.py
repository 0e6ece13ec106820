"""The compiled prefill layer: one compilation for each kind of layer, however many engines a process makes."""

from functools import partial
from itertools import product

import pytest
import torch
from torch._dynamo.utils import counters

from model.checkpoints import make_fixture
from nanofn import LLM, SamplingParams
from nanofn.device.fused_executor import FusedExecutor
from nanofn.llm.locate import embedded_model
from nanofn.model.prefill import compiled_layer

PROMPTS = [[1 + (7 * place + step) % 1000 for step in range(length)] for place, length in enumerate((1, 40, 70, 5))]
KINDS = tuple(product(("float32", "bfloat16", "float16"), ("qwen3", "llama", "qwen2 with YaRN, its factor given")))


def compiled_executor(params, limits, device):
    """The GPU's executor with a compiled layer, as `assemble` makes it on a GPU."""
    layer = compiled_layer((params.config, params.embedding.dtype, limits.block_size))
    return FusedExecutor(params, limits, device, layer=layer)


@pytest.fixture
def forgotten():
    """What was compiled for other tests is not used here, nor what is compiled here by others."""
    compiled_layer.cache_clear()
    yield
    compiled_layer.cache_clear()


@pytest.mark.usefixtures("forgotten")
def test_nine_kinds_take_nine_compilations_and_other_bounds_none(monkeypatch, tmp_path):
    """torch compiles one function at most eight times; a ninth kind of model would have failed at every prefill."""
    monkeypatch.setattr("nanofn.llm.assemble.EagerExecutor", compiled_executor)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    before = counters["stats"]["unique_graphs"]
    for bounds in ({"max_model_len": 128, "max_num_seqs": 4}, {"max_model_len": 96, "max_num_seqs": 6}):
        for place, (dtype, family) in enumerate(KINDS):
            folder = tmp_path / str(place)
            if not folder.exists():
                folder.mkdir()
                make_fixture(family, folder, vocab_size=1024, hidden_size=192, head_dim=32)
            with LLM(folder, tokenizer=embedded_model(), device="cpu", dtype=dtype, **bounds) as llm:
                outputs = llm.generate(PROMPTS, params, use_tqdm=False)
            assert {output.outputs[0].finish_reason for output in outputs} == {"length"}
    assert counters["stats"]["unique_graphs"] - before == len(KINDS)
