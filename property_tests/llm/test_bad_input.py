"""Bad input: a typed error that says what, with which number, and what to do; nothing stays behind."""

import numpy as np
import pytest

from nanofn import LLM, SamplingParams
from nanofn.errors import ChatTemplateError, ConfigError, NanofnError, ParameterError, RequestError, UsageError

GREEDY = SamplingParams(temperature=0.0, max_tokens=4)

BAD_PROMPTS = {
    "empty text": ("", "empty"),
    "empty text in a list": ([""], "empty"),
    "empty ids": ([[]], "empty"),
    "a prompt as long as the model": ([[5] * 128], "128 tokens, and max_model_len 128 leaves room for 127"),
    "a longer prompt": ([[5] * 500], "500 tokens"),
    "a negative id": ([[5, -1]], "token id -1 is outside the vocabulary"),
    "an id beyond the vocabulary": ([[5, 100_000]], "token id 100000 is outside the vocabulary; ids go from 0 to"),
    "a huge id": ([[2**63]], "token id 9223372036854775808 is outside"),
    "a number": (5, "5 is no prompt"),
    "None": (None, "None is no prompt"),
    "ids that are no integers": ([[1.5, 2.5]], "is no prompt"),
    "booleans": ([[True, False]], "is no prompt"),
    "a dict without a known key": ({"text": "a"}, "prompt_token_ids"),
    "bytes in a list": ([b"ab"], "is no prompt"),
}


@pytest.mark.parametrize("name", BAD_PROMPTS)
def test_a_bad_prompt_is_refused_before_anything_is_queued(name, llm):
    """The error is a RequestError that names the problem; the next call works as if nothing had happened."""
    prompts, message = BAD_PROMPTS[name]
    before = llm.state
    with pytest.raises(RequestError, match="nothing was queued") as caught:
        llm.generate(prompts, GREEDY)
    assert message in str(caught.value)
    assert llm.state is before
    assert len(llm.generate(["Once upon"], GREEDY)) == 1


def test_every_bad_index_is_listed_and_no_good_one_runs(llm):
    """A call is validated whole."""
    before = llm.state
    with pytest.raises(RequestError) as caught:
        llm.generate(["fine", "", "also fine", [7, -3], [5] * 200], GREEDY)
    assert [index for index, _ in caught.value.problems] == [1, 3, 4]
    assert llm.state is before


def test_no_prompts_give_no_results(llm):
    """`generate([])` is []."""
    assert llm.generate([]) == []
    assert llm.chat([]) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 2.5),
        ("max_tokens", "4"),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", -0.1),
        ("temperature", None),
        ("n", 0),
        ("n", 1.0),
        ("n", True),
        ("seed", 2**64),
        ("seed", 0.5),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_k", -2),
        ("min_p", 2.0),
        ("min_tokens", -1),
        ("repetition_penalty", 0.0),
        ("presence_penalty", 3.0),
        ("stop", [""]),
        ("stop_token_ids", [-1]),
        ("logprobs", -2),
    ],
)
def test_a_parameter_out_of_range_is_refused_by_name(field, value):
    """The error names the field, the value and what it may be."""
    with pytest.raises(ParameterError, match="must be") as caught:
        SamplingParams(**{field: value})
    assert (field, isinstance(caught.value, ValueError)) == (caught.value.field, True)
    assert repr(caught.value.value) in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("flat_logprobs", True),
        ("logprob_token_ids", [3]),
        ("repetition_detection", {"min_count": 2}),
        ("thinking_token_budget", 5),
    ],
)
def test_a_field_that_is_not_built_yet_is_refused_if_set(field, value, llm):
    """It would be ignored otherwise."""
    with pytest.raises(RequestError, match=f"{field} is not built yet"):
        llm.generate("a", SamplingParams(**{field: value}))


def test_a_stop_token_outside_the_vocabulary_is_refused(llm):
    """It would index logits that are not there."""
    with pytest.raises(RequestError, match="stop_token_ids has 100000; ids go from 0 to"):
        llm.generate("a", SamplingParams(stop_token_ids=[100_000]))


def test_prompts_and_parameters_must_be_as_many(llm):
    """One for all, or one each."""
    with pytest.raises(RequestError, match="3 prompts came with 2 SamplingParams"):
        llm.generate(["a", "b", "c"], [GREEDY, GREEDY])
    with pytest.raises(RequestError, match="2 prompts came with 3 priority"):
        llm.generate(["a", "b"], GREEDY, priority=[1, 2, 3])


def test_parameters_of_another_kind_are_refused(llm):
    """A dict is no SamplingParams."""
    with pytest.raises(RequestError, match="give SamplingParams"):
        llm.generate(["a"], {"temperature": 0})


def test_an_unknown_keyword_is_a_type_error(llm):
    """Misspelt options are never swallowed."""
    with pytest.raises(TypeError, match="max_token"):
        llm.generate("a", GREEDY, max_token=3)
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams(temprature=1)


@pytest.mark.parametrize(
    ("option", "answer"),
    [
        ("max_model_length", "max_model_len"),
        ("kvcache_block_size", "block_size"),
        ("num_gpu_blocks_override", "num_kv_blocks"),
        ("enforce_eagre", "did you mean enforce_eager"),
        ("trust_remote_code", "never runs code"),
        ("quantisation_of_the_moon", "it has model"),
    ],
)
def test_an_unknown_engine_option_is_answered_with_ours(option, answer):
    """Names of other engines too."""
    with pytest.raises(TypeError, match=answer):
        LLM(**{option: 1})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("block_size", 0),
        ("block_size", -256),
        ("max_num_seqs", 0),
        ("max_num_batched_tokens", 0),
        ("max_model_len", -5),
        ("max_model_len", 10**9),
        ("num_kv_blocks", 0),
        ("num_kv_blocks", 10**12),
        ("gpu_memory_utilization", 1.7),
        ("dtype", "int4"),
        ("device", "tpu"),
        ("depth", 0),
        ("policy", "fcfs"),
        ("tensor_parallel_size", 2),
        ("deterministic", True),
        ("record", "no/such/folder/run.jsonl"),
        ("record", 5),
        ("model", 5),
        ("tokenizer", 5),
        ("seed", [1]),
        ("gpu_memory_utilization", "x"),
        ("enable_prefix_caching", "no"),
    ],
)
def test_a_wrong_engine_option_is_refused_by_name(option, value):
    """With the value, and what it may be."""
    with pytest.raises(ConfigError) as caught:
        LLM(**{option: value})
    assert option in str(caught.value)
    assert str(value) in str(caught.value)


def test_a_pool_that_cannot_hold_one_sequence_is_refused_with_the_numbers():
    """An explicit length that does not fit is an error; one left open is lowered."""
    with pytest.raises(ConfigError, match=r"max_model_len 100 needs 7 blocks of 16 tokens, the pool has 3"):
        LLM(max_model_len=100, block_size=16, num_kv_blocks=3)
    with LLM(block_size=16, num_kv_blocks=3) as small:
        assert small.state.limits.max_model_len == 49


def test_every_kind_of_prompt_is_taken(llm):
    """Text, ids, arrays, dicts; one or many."""
    ids = llm.tokenizer.encode("Once upon a time")
    expected = llm.generate("Once upon a time", GREEDY)[0].outputs[0].token_ids
    for prompts in (
        "Once upon a time",
        ["Once upon a time"],
        ids,
        tuple(ids),
        [ids],
        np.array(ids),
        [np.array(ids)],
        {"prompt_token_ids": ids},
        [{"prompt_token_ids": tuple(ids)}],
        {"prompt": "Once upon a time"},
        (text for text in ["Once upon a time"]),
    ):
        outputs = llm.generate(prompts, GREEDY)
        assert [output.outputs[0].token_ids for output in outputs] == [expected]


def test_a_closed_engine_says_so():
    """Also when closed twice."""
    engine = LLM(max_model_len=64)
    engine.close()
    engine.close()
    with pytest.raises(UsageError, match="closed"):
        engine.generate("a")


def test_every_error_is_of_one_family():
    """A caller can catch them all, and as the built-in error it would expect."""
    for kind in (ConfigError, RequestError, ParameterError):
        assert issubclass(kind, NanofnError)
        assert issubclass(kind, ValueError)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"priority": "high"}, "priority is 'high'; it must be an integer"),
        ({"priority": (1, 2)}, "priority is"),
        ({"client": None}, "client is None; it must be a text"),
        ({"deadline": float("nan")}, "deadline is nan"),
        ({"deadline": "soon"}, "deadline is 'soon'"),
        ({"hint": {1, 2}}, "hint is {1, 2}"),
    ],
)
def test_a_wrong_fact_for_the_policy_is_refused_before_anything_is_queued(facts, message, llm):
    """The engine's state holds plain numbers and texts only, or its log could not be written."""
    with pytest.raises(RequestError, match="prompt 0") as caught:
        llm.generate("a", SamplingParams(max_tokens=1), **facts)
    assert message in str(caught.value)


def test_numbers_of_other_libraries_are_facts_too(tmp_path):
    """A recorded engine takes them, and its next call works."""
    with LLM(record=tmp_path / "run.jsonl", max_model_len=64) as engine:
        facts = {"priority": np.int64(3), "deadline": np.float32(9), "hint": (np.int64(1), 2.5)}
        for _ in range(2):
            assert engine.generate("a", SamplingParams(max_tokens=1), **facts)[0].finished


@pytest.mark.parametrize(
    "prompts", [b"Once", bytearray(b"a"), {1, 2}, {"prompt": "a", "cache_salt": "x"}, {1: 2, "a": 3}]
)
def test_what_only_looks_like_a_prompt_is_refused(prompts, llm):
    """Bytes are no token ids, sets have no order, and a key that nothing reads would be ignored."""
    with pytest.raises(RequestError, match="prompt 0"):
        llm.generate(prompts)


def test_text_that_is_no_unicode_is_refused(llm):
    """With the place of the lone surrogate, in a prompt and in a conversation."""
    with pytest.raises(RequestError, match="prompt 1: it is no valid text: a lone surrogate stands at character 1"):
        llm.generate(["a", "a\udcff"])
    with pytest.raises(ChatTemplateError, match="conversation 0"):
        llm.chat([{"role": "user", "content": "\udcff"}])


@pytest.mark.parametrize("messages", [None, 5, "Hello!", [[{"role": "user", "content": "a"}], [], [{"x": 1}]]])
def test_every_bad_conversation_is_named(messages, llm):
    """By its number."""
    with pytest.raises(ChatTemplateError, match="conversation") as caught:
        llm.chat(messages)
    if isinstance(messages, list):
        assert "conversation 1" in str(caught.value)
        assert "conversation 2" in str(caught.value)
        assert "conversation 0" not in str(caught.value)
    else:
        assert "conversation 1" not in str(caught.value)


def test_a_result_that_waits_counts_as_unfinished(llm):
    """An aborted request's result is handed out by the loop that asks `has_unfinished`."""
    number = llm.add_request("a", SamplingParams(max_tokens=9))
    llm.abort(number)
    assert llm.has_unfinished
    assert [output.request_id for output in llm.step()] == [number]
    assert not llm.has_unfinished
