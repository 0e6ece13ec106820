"""Captured steps give the tokens of launched ones: the GPU's executor whole, its graphs recorded and replayed on a CPU."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from llm.recorded_graph import RecordedGraph
from nanofn import LLM, SamplingParams, StructuredOutputsParams
from nanofn.device.fused_executor import FusedExecutor

PROMPTS = [[1 + (7 * place + step) % 1000 for step in range(length)] for place, length in enumerate((1, 40, 70, 5, 17))]
PLAIN = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
SAMPLED = PLAIN.replace(temperature=0.9, seed=3)
FILTERED = SAMPLED.replace(top_p=0.9, min_p=0.01)
PENALISED = FILTERED.replace(repetition_penalty=1.2, frequency_penalty=0.3, min_tokens=5, stop_token_ids=[300])
BIASED = PENALISED.replace(logit_bias={17: 2.0}, bad_words=["the", "and she"], logprobs=2)
FORMED = PLAIN.replace(structured_outputs=StructuredOutputsParams(regex=r"[a-z ]{3,40}"), max_tokens=9)
ADJUSTED = ("adjusted", "tables that come later", "grammars")
CALLS = {
    "greedy": [PLAIN] * 5,
    "sampled": [SAMPLED] * 5,
    "filtered": [PLAIN, FILTERED, SAMPLED, FILTERED, PLAIN],
    "adjusted": [PENALISED, PLAIN, PENALISED, SAMPLED, FILTERED],
    "tables that come later": [PLAIN, SAMPLED, PENALISED, PENALISED.replace(max_tokens=30), BIASED],
    "grammars": [FORMED, PLAIN, FORMED, PENALISED, BIASED],
}


@pytest.fixture
def graphs(monkeypatch):
    """Make torch capture on a CPU; lists the graphs."""
    made = []

    def make():
        made.append(RecordedGraph())
        return made[-1]

    monkeypatch.setattr(torch.cuda, "CUDAGraph", make)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(synchronize=lambda: None))
    return made


def outputs(monkeypatch, calls, *, captures, **options):
    """Tokens and log-probabilities of calls, one after another, by one engine."""
    executor = partial(FusedExecutor, captures=captures)
    monkeypatch.setattr("nanofn.llm.assemble.EagerExecutor", executor)
    with LLM(device="cpu", max_model_len=128, max_num_seqs=4, num_kv_blocks=40, block_size=16, **options) as llm:
        found = [llm.generate(PROMPTS, params, use_tqdm=False) for params in calls]
    return [
        [(each.outputs[0].token_ids, each.outputs[0].finish_reason, each.outputs[0].logprobs) for each in results]
        for results in found
    ]


@pytest.mark.parametrize("name", CALLS)
def test_replays_give_the_tokens_of_launches(monkeypatch, graphs, name):
    """Every size of step, prefills of several sizes, rows that come and go; the second call replays what the first captured."""
    calls = [CALLS[name]] * 2 if name != "tables that come later" else [CALLS["greedy"], CALLS["adjusted"], CALLS[name]]
    options = {"max_num_batched_tokens": 48}
    expected = outputs(monkeypatch, calls, captures=False, **options)
    assert outputs(monkeypatch, calls, captures=True, **options) == expected
    at_the_start = 3 * 3  # a forward and two samplers for 1, 2 and 4 sequences
    replays = [graph.num_replays for graph in graphs]
    assert sum(replays[:at_the_start]) > 20, "decode steps"
    assert sum(replays[at_the_start:]) > (10 if name in ADJUSTED else 1), "prefills and what adjusts logits"


def test_what_comes_later_makes_nobody_capture_anew(monkeypatch, graphs):
    """Masks and words get their tables when someone first asks; who asks for neither goes on with the graphs that there are."""
    monkeypatch.setattr("nanofn.llm.assemble.EagerExecutor", partial(FusedExecutor, captures=True))
    with LLM(device="cpu", max_model_len=128, max_num_seqs=1, num_kv_blocks=40, block_size=16) as llm:
        for params in (PENALISED, PENALISED, FORMED, PENALISED.replace(bad_words=["and she"])):
            llm.generate(PROMPTS[:1], params, use_tqdm=False)
        number = len(graphs)
        llm.generate(PROMPTS[:1], PENALISED, use_tqdm=False)
        assert len(graphs) == number
