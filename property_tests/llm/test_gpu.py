"""What only a GPU shows: graphs, memory, compilations. The texts' equality is tested where that of a CPU is."""

import gc
import re
import threading
from importlib.util import find_spec

import pytest
import torch

from nanofn import LLM, SamplingParams
from nanofn.device.capture import capture
from nanofn.errors import ConfigError

pytestmark = pytest.mark.gpu

PROMPTS = [[1 + (7 * place + step) % 1000 for step in range(length)] for place, length in enumerate((1, 40, 300, 511))]
GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.9, top_p=0.9, seed=3, max_tokens=40, ignore_eos=True)
ADJUSTED = SAMPLED.replace(
    repetition_penalty=1.2, frequency_penalty=0.3, min_tokens=9, stop_token_ids=[300], logit_bias={17: -9.0},
    bad_words=["the", "and she"], logprobs=3,
)  # fmt: skip
FORMED = SAMPLED.replace(structured_outputs={"regex": "([a-d]{1,4} ){30}"}, logprobs=2)
needs_llguidance = pytest.mark.skipif(find_spec("llguidance") is None, reason="forms need llguidance, an extra")
SMALL_POOL = {"num_kv_blocks": 36, "block_size": 16, "max_model_len": 577}


def tokens(params, **options):
    """Every output of an fp32 engine."""
    with LLM(device="cuda", dtype="float32", gpu_memory_utilization=0.3, **options) as llm:
        return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, params)]


@pytest.mark.parametrize(
    "params",
    [GREEDY, SAMPLED, ADJUSTED, pytest.param(FORMED, marks=needs_llguidance)],
    ids=["greedy", "sampled", "adjusted", "formed"],
)
def test_graphs_depth_and_preemption_change_no_token(params):
    """The same tokens launched kernel by kernel, at depth 1, in small chunks and in a pool that preempts."""
    expected = tokens(params)
    for options in ({"enforce_eager": True}, {"depth": 1}, {"max_num_batched_tokens": 48}, SMALL_POOL):
        assert tokens(params, **options) == expected, options


@needs_llguidance
def test_forms_and_log_probabilities_of_many_rows():
    """64 rows of 256 follow a form, all report: forms hold, and each row's tokens are what it gets among fewer."""
    prompts = [[20 + place, 31, 7 + place % 5] for place in range(256)]
    params = [(FORMED if place % 4 == 0 else SAMPLED).replace(seed=place, logprobs=2) for place in range(256)]
    with LLM(device="cuda", dtype="float32", gpu_memory_utilization=0.3) as llm:
        together = llm.generate(prompts, params)
        fewer = llm.generate(prompts[:40], params[:40])
    for output, alike in zip(together, fewer, strict=False):
        assert output.outputs[0].token_ids == alike.outputs[0].token_ids
    for output in together:
        found = output.outputs[0]
        ranks = [each[token_id].rank for each, token_id in zip(found.logprobs, found.token_ids, strict=True)]
        assert min(ranks) >= 1
        assert all(2 <= len(each) <= 3 for each in found.logprobs)
    assert all(re.fullmatch("[a-d ]+", output.text) for output in together[::4])


def test_nothing_is_compiled_after_the_start():
    """Prompts of many lengths, alone and together, prefilled, mixed and decoded, use what the start has compiled."""
    import triton
    from torch._dynamo.utils import counters

    with LLM(device="cuda", gpu_memory_utilization=0.3, max_num_batched_tokens=256) as llm:
        llm.generate(PROMPTS, GREEDY)
        compiled = []
        before, hook = counters["stats"]["unique_graphs"], triton.knobs.runtime.jit_post_compile_hook
        triton.knobs.runtime.jit_post_compile_hook = lambda **facts: compiled.append(facts["repr"])
        try:
            for count in (1, 2, 3, 30, 70):
                llm.generate([[5 + place] * (17 * place % 200 + 1) for place in range(count)], GREEDY)
                llm.generate([[5 + place] * (17 * place % 200 + 1) for place in range(count)], SAMPLED)
                llm.generate([[5 + place] * (17 * place % 200 + 1) for place in range(count)], ADJUSTED)
                if find_spec("llguidance") is not None:
                    llm.generate([[5 + place] * (17 * place % 200 + 1) for place in range(count)], FORMED)
        finally:
            triton.knobs.runtime.jit_post_compile_hook = hook
        assert not compiled
        assert counters["stats"]["unique_graphs"] == before


def test_nothing_is_left_after_close():
    """Not one byte of the device stays allocated, nor reserved, whether Python collects or not. The second call captures."""
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    llm = LLM(device="cuda", gpu_memory_utilization=0.3)
    for params in (GREEDY, GREEDY, ADJUSTED, ADJUSTED):
        llm.generate(PROMPTS, params)
    assert torch.cuda.memory_allocated() > before[0]
    gc.collect()
    gc.disable()
    try:
        llm.close()
        after = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    finally:
        gc.enable()
    assert after[0] <= before[0]
    assert after[1] <= before[1]


def test_an_engine_is_alive_while_another_captures():
    """A device may not be waited for while any thread captures on it; a stream of one's own may."""
    found = []
    with LLM(device="cuda", gpu_memory_utilization=0.3) as llm:

        def work():
            beside = threading.Thread(target=lambda: found.append(llm._executor.is_alive()))
            beside.start()
            beside.join()
            return torch.ones(8, device="cuda")

        with torch.cuda.stream(torch.cuda.Stream()):
            work()
            captured = capture(work, torch.cuda.graph_pool_handle())
            assert captured.replay().sum() == 8
    assert found == [True, True]


def test_closing_one_engine_leaves_the_graphs_of_another_whole():
    """What the closed one gave back is written over; the other's replays read none of it."""
    with LLM(device="cuda", gpu_memory_utilization=0.3) as llm:
        expected = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY)]
        other = LLM(device="cuda", gpu_memory_utilization=0.6)
        other.generate(PROMPTS, GREEDY)
        other.close()
        free = torch.cuda.mem_get_info()[0]
        overwritten = torch.full((free // 2,), 255, dtype=torch.uint8, device="cuda")
        assert [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY)] == expected
        del overwritten


def test_what_others_hold_is_left_to_them():
    """A pool is sized by what is free: somebody else's memory counts against the share, and an impossible share is named."""
    free, total = torch.cuda.mem_get_info()
    held = torch.empty(int(free - 0.2 * total), dtype=torch.uint8, device="cuda")
    try:
        with LLM(device="cuda", gpu_memory_utilization=0.9) as llm:
            assert llm.generate(PROMPTS, GREEDY)[0].finished
        with pytest.raises(ConfigError, match=r"available for K/V are 0|gpu_memory_utilization"):
            LLM(device="cuda", gpu_memory_utilization=0.5)
    finally:
        del held
        torch.cuda.empty_cache()
