"""A sampled request gets the same tokens alone, among others, preempted, and at every depth, whatever its parameters."""

from functools import cache
from random import Random

import pytest
import torch

from nanofn import LLM, SamplingParams
from nanofn.batch.row_sampling import RowSampling
from nanofn.llm.locate import embedded_model
from nanofn_kernels.reference.noise import gumbel_noise
from sampling.exact import adjusted, filtered

TIE = 1e-4
"""A difference is excused only where the two best perturbed scores are closer than this."""

NUM_REQUESTS, NUM_TOKENS = 64, 24
KINDS = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.3},
    {"top_k": 5},
    {"top_p": 0.8},
    {"min_p": 0.05},
    {"top_k": 30, "top_p": 0.9, "min_p": 0.02, "temperature": 1.4},
    {"repetition_penalty": 1.3},
    {"presence_penalty": 0.9, "frequency_penalty": 0.4, "top_p": 0.95},
    {"repetition_penalty": 1.5, "temperature": 0.0},
    {"logit_bias": {300: 4.0, 17: -100.0, 513: 2.5}},
    {"allowed_token_ids": list(range(260, 600)), "top_k": 50},
    {"bad_words": ["the", "and", "she was"], "temperature": 0.7},
    {"min_tokens": 12, "stop_token_ids": [300, 46], "ignore_eos": False},
    {"stop": ["an", "ed "], "min_tokens": 3},
    {"logprobs": 2, "top_k": 8, "repetition_penalty": 1.1, "min_tokens": 5, "ignore_eos": False},
]
"""Every adjustment and filter, alone and with others."""

OPTIONS = {"max_model_len": 96, "block_size": 8, "max_num_seqs": 64}
RUNS = {
    "among 63 others, depth 1": {"depth": 1},
    "among 63 others, depth 2": {"depth": 2},
    "among 63 others, depth 3, no prefix cache": {"depth": 3, "enable_prefix_caching": False},
    "among 7 others": {"max_num_seqs": 8},
    "fused, among 31 others": {"max_num_seqs": 32},
    "preempted, depth 2": {"num_kv_blocks": 90, "depth": 2},
    "preempted, in chunks of 40, depth 1": {"num_kv_blocks": 90, "depth": 1, "max_num_batched_tokens": 40},
    "fused, among 63 others": {},
    "fused, preempted, in chunks of 40, depth 3": {"num_kv_blocks": 90, "depth": 3, "max_num_batched_tokens": 40},
}


def params_of(place):
    """Of the request in that place."""
    fields = {"ignore_eos": True, "max_tokens": NUM_TOKENS, "seed": 1000 + place}
    return SamplingParams(**(fields | KINDS[place % len(KINDS)]))


@pytest.fixture(scope="module")
def prompts():
    """64 prompts of 1 to 48 ids; every third one begins alike."""
    random = Random(9)
    shared = [random.randrange(10, 1000) for _ in range(20)]
    found = [[random.randrange(10, 1000) for _ in range(random.randint(1, 48))] for _ in range(NUM_REQUESTS)]
    return [(shared + prompt)[:48] if place % 3 == 0 else prompt for place, prompt in enumerate(found)]


@pytest.fixture(scope="module")
def alone(prompts):
    """Each request's tokens when nothing else runs: one at a time, nothing cached, one step in flight."""
    with LLM(**OPTIONS, depth=1, enable_prefix_caching=False) as engine:
        return [
            engine.generate([prompt], params_of(place))[0].outputs[0].token_ids for place, prompt in enumerate(prompts)
        ]


@cache
def model():
    """The embedded model in transformers."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(embedded_model(), dtype=torch.float32).eval()


def best_and_margin(engine, place, prompt, output):
    """The token after `output` by definition, in float64 from transformers' logits, and how clearly it wins."""
    params = params_of(place)
    words = [
        tuple(engine.tokenizer.encode_plain(blank + word)) for word in params.bad_words or () for blank in ("", " ")
    ]
    sampling = RowSampling(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        logit_bias=params.logit_bias or (),
        allowed_token_ids=params.allowed_token_ids,
        bad_words=tuple(words),
        min_tokens=params.min_tokens,
        end_token_ids=params.stop_token_ids or (),
    )
    with torch.inference_mode():
        logits = model()(torch.tensor([[*prompt, *output]])).logits[0, -1].tolist()
    logits = adjusted(logits, sampling, prompt, output)
    if params.temperature == 0:
        scores = torch.tensor(logits, dtype=torch.float64)
    else:
        where = [torch.tensor([number]) for number in (params.seed, len(prompt) + len(output), 0)]
        scores = (
            torch.tensor(filtered(logits, sampling), dtype=torch.float64).log() + gumbel_noise(*where, len(logits))[0]
        )
    best = scores.topk(2)
    return best.indices[0].item(), (best.values[0] - best.values[1]).item()


@pytest.mark.parametrize("name", RUNS)
def test_others_and_scheduling_change_no_token(name, prompts, alone, capsys, request):
    """All 64 in one call, 16 kinds of parameters: token for token what each gets alone, ties counted and printed."""
    num_ties = 0
    if name.startswith("fused"):
        request.getfixturevalue("fused")
    with LLM(**OPTIONS | RUNS[name]) as engine:
        outputs = engine.generate(prompts, [params_of(place) for place in range(NUM_REQUESTS)])
        for place, (output, expected) in enumerate(zip(outputs, alone, strict=True)):
            found = output.outputs[0].token_ids
            pairs = enumerate(zip(found, expected, strict=False))
            first = next((at for at, (ours, theirs) in pairs if ours != theirs), None)
            if first is None:
                assert len(found) == len(expected)
            else:
                _, margin = best_and_margin(engine, place, prompts[place], expected[:first])
                assert margin < TIE, f"request {place} differs at output {first}"
                num_ties += 1
    with capsys.disabled():
        print(f" ({num_ties} ties)", end="")
    assert num_ties <= 1
    if "num_kv_blocks" in RUNS[name]:
        assert sum(output.metrics.num_preemptions for output in outputs) > 0


def test_tokens_are_those_of_the_definitions(prompts, alone):
    """For every kind of parameters: the best of transformers' logits, adjusted, filtered and perturbed by definition."""
    with LLM(**OPTIONS) as engine:
        for place in range(len(KINDS)):
            for count in (0, 2, min(len(alone[place]), 15) - 1):
                token_id, margin = best_and_margin(engine, place, prompts[place], alone[place][:count])
                assert alone[place][count] == token_id or margin < TIE


@pytest.mark.parametrize("place", range(len(KINDS)))
def test_a_recorded_seed_given_again_repeats_the_text(place, llm):
    """No seed given, any parameters, two children: the output's seed makes the same call repeat itself."""
    params = params_of(place).replace(seed=None, n=2, max_tokens=8, min_tokens=0)
    (first,) = llm.generate("Once upon a time", params)
    (again,) = llm.generate("Once upon a time", params.replace(seed=first.outputs[0].seed))
    assert [each.text for each in first.outputs] == [each.text for each in again.outputs]
    assert [each.token_ids for each in first.outputs] == [each.token_ids for each in again.outputs]


def test_a_neighbour_without_a_seed_does_not_reach_a_seeded_request(llm):
    """Four times beside one without, once beside one with another seed: always the same output."""
    seeded, free = (
        SamplingParams(temperature=0.8, seed=42, max_tokens=10, ignore_eos=True),
        SamplingParams(max_tokens=10),
    )
    found = {llm.generate(["The cat", "A dog"], [seeded, free])[0].text for _ in range(4)}
    found.add(llm.generate(["The cat", "A dog"], [seeded, free.replace(seed=7)])[0].text)
    assert len(found) == 1


def test_noise_differs_from_position_to_position(llm):
    """Flat over many ids: sixteen tokens are not all alike, and a second run gives them again."""
    params = SamplingParams(temperature=1e6, seed=42, max_tokens=16, ignore_eos=True)
    first, again = (llm.generate("Once", params)[0].outputs[0].token_ids for _ in range(2))
    assert first == again
    assert len(set(first)) > 12


@pytest.mark.parametrize("is_cached", [True, False])
def test_children_share_the_blocks_of_their_prompt(is_cached):
    """Eight children compute a prompt of 100 tokens once, but for their last block; without the cache each computes it."""
    prompt, n, block_size = [40 + place for place in range(100)], 8, 16
    params = SamplingParams(n=n, seed=4, max_tokens=6, ignore_eos=True, top_p=0.9, bad_words=["the"])
    with LLM(max_model_len=128, block_size=block_size, enable_prefix_caching=is_cached) as engine:
        (output,) = engine.generate([prompt], params)
        num_prefilled = engine.summary().num_prefill_tokens
        singles = [each.token_ids for each in output.outputs]
    assert len(set(singles)) > 1
    if is_cached:
        assert num_prefilled <= len(prompt) + n * block_size
    else:
        assert num_prefilled == n * len(prompt)
    with LLM(max_model_len=128, block_size=4, depth=1) as engine:
        assert singles == [each.token_ids for each in engine.generate([prompt], params)[0].outputs]


def test_children_have_all_of_their_requests_parameters(llm):
    """Bad words, allowed ids, end tokens and min_tokens hold for child 0 and for child 2 alike."""
    allowed = list(range(290, 330))
    word = llm.tokenizer.decode([299])
    params = SamplingParams(
        n=3, temperature=5.0, seed=1, max_tokens=30, min_tokens=8, allowed_token_ids=allowed, bad_words=[word],
        stop_token_ids=[291, 292],
    )  # fmt: skip
    (output,) = llm.generate("Once", params)
    for each in output.outputs:
        assert set(each.token_ids) <= set(allowed) - {299}
        assert not {291, 292} & set(each.token_ids[:8])
        assert each.finish_reason == "stop" or not {291, 292} & set(each.token_ids)
