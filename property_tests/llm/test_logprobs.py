"""Log-probabilities are those of the model's own distribution, for prompt and output, however the work is scheduled."""

import copy
import json
import pickle
from random import Random

import pytest
import torch

from nanofn import LLM, Logprob, SamplingParams
from nanofn.llm.locate import embedded_model

TOLERANCE = 1e-4
"""Between two implementations of one forward pass in fp32. Largest difference seen here: 4e-5."""

RANDOM = Random(5)
PROMPTS = [[RANDOM.randrange(10, 1000) for _ in range(length)] for length in (1, 7, 30, 64, 65)]
SAMPLED = SamplingParams(temperature=0.9, seed=11, max_tokens=12, ignore_eos=True, top_k=40, repetition_penalty=1.2)
SMALL_POOL = {"num_kv_blocks": 23, "block_size": 4, "max_model_len": 90, "max_num_seqs": 8}


@pytest.fixture(scope="module")
def logprobs_of():
    """A function from token ids to transformers' log-probabilities of the token after each of them."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(embedded_model(), dtype=torch.float32).eval()

    @torch.inference_mode()
    def compute(token_ids):
        return model(torch.tensor([token_ids])).logits[0].double().log_softmax(1)

    return compute


def assert_right(found, token_id, expected, count):
    """One position: the token first, then the likeliest ids in order; values, ranks and texts right."""
    vocab_size = len(expected)
    count = vocab_size if count == -1 else count
    ids = list(found)
    assert ids[0] == token_id
    others = ids[1:]
    for each, logprob in found.items():
        assert isinstance(logprob, Logprob)
        assert abs(logprob.logprob - expected[each].item()) < TOLERANCE
        low = int((expected > expected[each] + TOLERANCE).sum()) + 1
        high = int((expected > expected[each] - TOLERANCE).sum())
        assert low <= logprob.rank <= high
    ranks = [found[each].rank for each in others]
    assert sorted(ranks) == ranks
    is_likely = found[token_id].rank <= count
    assert len(ids) == count + (not is_likely)
    assert {found[each].rank for each in ids if each != token_id or is_likely} == set(range(1, count + 1))


def check_output(output, logprobs_of, count):
    """Every position of a result's outputs."""
    prompt = output.prompt_token_ids
    for each in output.outputs:
        expected = logprobs_of([*prompt, *each.token_ids])[len(prompt) - 1 :]
        assert len(each.logprobs) == len(each.token_ids)
        for place, token_id in enumerate(each.token_ids):
            assert_right(each.logprobs[place], token_id, expected[place], count)
        total = sum(found[token_id].logprob for found, token_id in zip(each.logprobs, each.token_ids, strict=True))
        assert each.cumulative_logprob == pytest.approx(total)


def check_prompt(output, logprobs_of, count):
    """Every position of a result's prompt."""
    prompt = output.prompt_token_ids
    expected = logprobs_of(prompt)
    assert len(output.prompt_logprobs) == len(prompt)
    assert output.prompt_logprobs[0] is None
    for place in range(1, len(prompt)):
        assert_right(output.prompt_logprobs[place], prompt[place], expected[place - 1], count)


@pytest.mark.parametrize("count", [0, 1, 5, -1])
def test_they_are_log_softmax_of_the_models_logits(count, llm, logprobs_of):
    """Greedy and sampled with filters and penalties, which do not show: values, ranks, order, sum."""
    chosen = PROMPTS[:1] if count == -1 else PROMPTS
    params = SAMPLED.replace(logprobs=count, max_tokens=3 if count == -1 else 12)
    for output in llm.generate(chosen, params) + llm.generate(chosen, params.replace(temperature=0.0)):
        check_output(output, logprobs_of, count)


def test_asking_for_them_changes_no_token(llm):
    """The same tokens with and without."""
    plain, asked = (
        [output.outputs[0].token_ids for output in llm.generate(PROMPTS, SAMPLED.replace(**fields))]
        for fields in ({}, {"logprobs": 3})
    )
    assert plain == asked


def test_unasked_rows_report_nothing(llm):
    """In one batch each request gets what it asked for."""
    params = [SAMPLED, SAMPLED.replace(logprobs=2), SAMPLED.replace(logprobs=0), SAMPLED, SAMPLED.replace(logprobs=7)]
    outputs = [output.outputs[0] for output in llm.generate(PROMPTS, params)]
    assert [each.logprobs is not None for each in outputs] == [False, True, True, False, True]
    assert [each.cumulative_logprob is not None for each in outputs] == [False, True, True, False, True]
    assert {len(found) for found in outputs[2].logprobs} == {1}
    assert {len(found) for found in outputs[1].logprobs} <= {2, 3}


def test_with_top_k_no_sampled_token_has_a_larger_rank(llm):
    """Temperature 0.7, the 20 likeliest: the sampled one is always among those reported, and its rank is at most 20."""
    params = SamplingParams(temperature=0.7, top_k=20, logprobs=20, max_tokens=100, ignore_eos=True, seed=2)
    (output,) = llm.generate([PROMPTS[1]], params)
    ranks = [
        found[token_id].rank
        for found, token_id in zip(output.outputs[0].logprobs, output.outputs[0].token_ids, strict=True)
    ]
    assert len(ranks) == 100
    assert max(ranks) <= 20
    assert {len(found) for found in output.outputs[0].logprobs} == {20}


@pytest.mark.parametrize(
    ("options", "is_fused"),
    [
        ({}, False),
        ({"depth": 1}, False),
        (SMALL_POOL, False),
        (SMALL_POOL | {"max_num_batched_tokens": 7}, False),
        ({}, True),
        (SMALL_POOL | {"max_num_batched_tokens": 7}, True),
    ],
)
def test_scheduling_moves_none_of_them(options, is_fused, logprobs_of, request):
    """Chunks of 7, preemption and executor: output and prompt are reported once per token, with the same values."""
    if is_fused:
        request.getfixturevalue("fused")
    params = SAMPLED.replace(logprobs=2, prompt_logprobs=1, n=2, max_tokens=20)
    with LLM(**{"max_model_len": 128, **options}) as engine:
        outputs = engine.generate(PROMPTS, params)
        if "num_kv_blocks" in options:
            assert sum(output.metrics.num_preemptions for output in outputs) > 0
    for output in outputs:
        check_output(output, logprobs_of, 2)
        check_prompt(output, logprobs_of, 1)


@pytest.mark.parametrize("is_fused", [False, True])
def test_chunks_of_one_token_report_a_prompt_too(is_fused, logprobs_of, request):
    """Steps of such chunks are decode steps otherwise, which know no hidden states."""
    if is_fused:
        request.getfixturevalue("fused")
    options = {"max_model_len": 128, "max_num_seqs": 2, "max_num_batched_tokens": 2}
    with LLM(**options) as engine:
        params = SAMPLED.replace(logprobs=1, prompt_logprobs=1, max_tokens=3)
        for output in engine.generate([[5, 6, 7, 8], [9, 10, 11]], params):
            check_output(output, logprobs_of, 1)
            check_prompt(output, logprobs_of, 1)


@pytest.mark.parametrize("count", [0, 1, 5, -1])
def test_those_of_a_prompt_are_log_softmax_too(count, llm, logprobs_of):
    """None for the first token, which nothing precedes; the actual token always first."""
    # The last one is longer than the rows of logits that are held at once.
    chosen = PROMPTS[:2] if count == -1 else [*PROMPTS, PROMPTS[3] + PROMPTS[2] + PROMPTS[2]]
    for output in llm.generate(chosen, SamplingParams(prompt_logprobs=count, max_tokens=1)):
        check_prompt(output, logprobs_of, count)
        assert output.outputs[0].logprobs is None


@pytest.mark.parametrize("fields", [{"prompt_logprobs": 0}, {"skip_reading_prefix_cache": True}])
def test_a_prompt_that_must_be_computed_whole_is_not_read_from_the_cache(fields, llm):
    """Also when it is there; it still fills the cache for others, and the tokens are the same."""
    prompt = [31 + place for place in range(100)]
    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    llm.generate([prompt], params)
    (cached,) = llm.generate([prompt], params)
    (whole,) = llm.generate([prompt], params.replace(**fields))
    assert (64, 0) == (cached.num_cached_tokens, whole.num_cached_tokens)
    assert cached.outputs[0].token_ids == whole.outputs[0].token_ids


def test_a_stop_string_cuts_them_with_the_tokens(llm, logprobs_of):
    """At every depth no position is reported that is not in the output."""
    params = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True, logprobs=1)
    prompt = llm.tokenizer.encode("Once upon a time")
    whole = llm.generate([prompt], params)[0].outputs[0]
    stop = whole.text[20:24]
    for depth in (1, 2, 3):
        with LLM(max_model_len=128, depth=depth) as engine:
            (output,) = engine.generate([prompt], params.replace(stop=stop))
        cut = output.outputs[0]
        assert (whole.text[: whole.text.index(stop)], stop) == (cut.text, cut.stop_reason)
        assert cut.token_ids == whole.token_ids[: len(cut.token_ids)]
        assert len(cut.token_ids) < len(whole.token_ids)
        check_output(output, logprobs_of, 1)


def test_an_aborted_request_has_one_for_each_token(logprobs_of):
    """And of its prompt what was computed."""
    params = SAMPLED.replace(logprobs=1, prompt_logprobs=1, max_tokens=50)
    with LLM(max_model_len=128, max_num_batched_tokens=16) as engine:
        for num_steps in range(8):
            number = engine.add_request(PROMPTS[2], params)
            for _ in range(num_steps):
                assert engine.step() == []
            engine.abort(number)
            (output,) = engine.step()
            assert output.outputs[0].finish_reason == "abort"
            check_output(output, logprobs_of, 1)
            known = output.prompt_logprobs
            assert (len(known) == len(PROMPTS[2])) == (num_steps >= 2)
            expected = logprobs_of(PROMPTS[2])
            for place in range(1, len(known)):
                assert_right(known[place], PROMPTS[2][place], expected[place - 1], 1)


def test_they_are_plain_data_in_json(llm):
    """to_dict() takes them along."""
    (output,) = llm.generate([PROMPTS[1]], SAMPLED.replace(logprobs=1, prompt_logprobs=0, max_tokens=2))
    read = json.loads(json.dumps(output.to_dict()))
    (token_id, *_) = output.outputs[0].token_ids
    assert (
        output.outputs[0].logprobs[0][token_id].logprob == read["outputs"][0]["logprobs"][0][str(token_id)]["logprob"]
    )
    assert read["prompt_logprobs"][0] is None


def test_ids_without_a_token_are_reported_without_a_text(llm):
    """Every id of the vocabulary decodes to something, parts of a character to nothing, and nothing raises."""
    (output,) = llm.generate([PROMPTS[1]], SAMPLED.replace(logprobs=-1, max_tokens=1))
    (found,) = output.outputs[0].logprobs
    for token_id, logprob in found.items():
        assert llm.tokenizer.decode([token_id], skip_special_tokens=False).rstrip("\ufffd") == logprob.decoded_token


def test_decoded_tokens_join_to_the_text(llm):
    """Of an output and of a prompt, where characters lie across tokens; likelier ones are told in the same place."""
    text = "a😀b€é😀"
    params = SamplingParams(max_tokens=60, logprobs=2, prompt_logprobs=1, structured_outputs={"choice": [text]})
    prompt = llm.tokenizer.encode_plain("€ and 😀😀.")
    (output,) = llm.generate([prompt], params)
    completion = output.outputs[0]
    assert completion.text == text
    assert len(completion.token_ids) > len(text)
    chosen = [found[token_id] for found, token_id in zip(completion.logprobs, completion.token_ids, strict=True)]
    assert "".join(each.decoded_token for each in chosen) == text
    told = [found[token_id] for found, token_id in zip(output.prompt_logprobs[1:], prompt[1:], strict=True)]
    assert (
        llm.tokenizer.decode(prompt[:1]).rstrip("\ufffd") + "".join(each.decoded_token for each in told)
        == "€ and 😀😀."
    )


def test_they_are_a_sequence_that_never_changes(llm):
    """Index, slice, iteration, comparison, copy and pickle, with a None in front of a prompt's."""
    params = SAMPLED.replace(logprobs=1, prompt_logprobs=0, max_tokens=4)
    (output,) = llm.generate([PROMPTS[1]], params)
    (again,) = llm.generate([PROMPTS[1]], params)
    for found, other in (
        (output.outputs[0].logprobs, again.outputs[0].logprobs),
        (output.prompt_logprobs, again.prompt_logprobs),
    ):
        plain = [found[place] for place in range(len(found))]
        assert (len(plain), plain) == (len(found), list(found))
        assert found == plain
        assert found == tuple(plain)
        assert found[-1] == plain[-1]
        assert found[1:3] == tuple(plain[1:3])
        assert found != plain[1:]
        assert repr(found) == repr(tuple(plain))
        assert pickle.loads(pickle.dumps(found)) == copy.deepcopy(found) == found
        assert found == other
        with pytest.raises(IndexError):
            found[len(found)]
        found[1].clear()
        assert found == plain
    assert output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(PROMPTS[1])
    assert pickle.loads(pickle.dumps(output)).outputs[0].token_ids == output.outputs[0].token_ids
