"""Calls with any values in any fields: each ends with results or with an error of ours, and the next one works."""

import math

import attrs
import numpy as np
from hypothesis import HealthCheck, given, settings, strategies as st

from nanofn import SamplingParams
from nanofn.embedded.train import CONFIG
from nanofn.errors import NanofnError, ParameterError
from nanofn.sampling.params import unbuilt_fields

MOST_STEPS = 400
"""Twelve sequences of 128 tokens in eight rows need fewer, also where they have to be preempted."""

STRANGE = (
    None, "", "x", b"x", -1, 0, 1, 2**70, -(2**70), 0.5, 1e300, -0.0, math.nan, math.inf, True, [], [None], {}, (), [[1]],
    {"a": 1, 2: 3}, np.int64(3), np.float32(0.5), np.array([1, 2]), np.array([]), np.array(5), object(),
)  # fmt: skip
"""Values that some field may not take, and some field may."""

VOCAB_SIZE = CONFIG.vocab_size
NUMBER = st.floats(-2.5, 2.5)
COUNT = st.integers(-2, 140)
TOKEN_IDS = st.lists(st.integers(-1, VOCAB_SIZE + 1), max_size=6)
TEXTS = st.one_of(st.text("ae t", max_size=4), st.lists(st.text("aeht é", max_size=4), max_size=3))
VALUES = {
    "n": st.sampled_from([1, 1, 2, 3, 0, 20_000]),
    "temperature": st.one_of(st.floats(0, 3), st.sampled_from([0.0, 1e-6, 1e-5, 1e30])),
    "max_tokens": st.one_of(st.integers(1, 12), st.just(10**9)),
    "seed": st.integers(-(2**63), 2**64),
    "ignore_eos": st.booleans(),
    "stop_token_ids": TOKEN_IDS,
    "skip_special_tokens": st.booleans(),
    "detokenize": st.booleans(),
    "top_p": st.floats(0, 1),
    "top_k": st.integers(-1, 2 * VOCAB_SIZE),
    "min_p": st.floats(0, 1),
    "min_tokens": st.integers(0, 12),
    "stop": TEXTS,
    "include_stop_str_in_output": st.booleans(),
    "presence_penalty": NUMBER,
    "frequency_penalty": NUMBER,
    "repetition_penalty": st.one_of(st.floats(0.01, 3), st.sampled_from([1e-300, 1e300])),
    "logit_bias": st.dictionaries(
        st.integers(0, VOCAB_SIZE), st.one_of(NUMBER, st.sampled_from([1e300, -1e300])), max_size=4
    ),
    "allowed_token_ids": TOKEN_IDS,
    "bad_words": TEXTS,
    "logprobs": st.one_of(st.integers(-1, 5), COUNT),
    "prompt_logprobs": st.one_of(st.integers(-1, 5), COUNT),
    "truncate_prompt_tokens": COUNT,
    "skip_reading_prefix_cache": st.sampled_from([None, True, False]),
    "logprob_token_ids": TOKEN_IDS,
    "flat_logprobs": st.booleans(),
    "spaces_between_special_tokens": st.booleans(),
    "thinking_token_budget": COUNT,
    "repetition_detection": st.sampled_from([None, {"min_count": 2}]),
    "structured_outputs": st.sampled_from(
        [
            None,
            {"regex": "[ab]{2,9}"},
            {"choice": ["red", "é€"]},
            {"json_object": True},
            {"regex": "(a"},
            {"choice": []},
        ]
    ),
}
PROMPTS = st.one_of(
    st.text("Once upon a time é€", max_size=12),
    st.lists(st.integers(3, VOCAB_SIZE - 1), min_size=1, max_size=20),
    st.sampled_from([[5] * 127, [5] * 128, [-1], [VOCAB_SIZE], []]),
)
GREEDY = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)


@st.composite
def some_fields(draw, *, odds):
    """Values for a few fields: mostly of the right kind; `odds` in ten are strange ones."""
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), unique=True, max_size=5))
    return {
        name: draw(st.sampled_from(STRANGE) if draw(st.integers(1, 10)) <= odds else VALUES[name]) for name in names
    }


def assert_whole(output, params, prompt):
    """What holds of every result."""
    assert output.finished
    assert len(output.outputs) == params.n
    for each in output.outputs:
        assert each.finish_reason in ("stop", "length")
        assert 1 <= len(each.token_ids) <= (params.max_tokens or 128)
        assert len(each.token_ids) + len(output.prompt_token_ids) <= 128
        is_free = params.structured_outputs is None  # a form counts more than other restrictions
        allowed = params.allowed_token_ids if is_free else None
        assert allowed is None or set(each.token_ids) <= set(allowed)
        assert (each.logprobs is None) == (params.logprobs is None)
        assert each.logprobs is None or len(each.logprobs) == len(each.token_ids)
        assert each.finish_reason == "length" or len(each.token_ids) > params.min_tokens or not is_free
    assert output.prompt_logprobs is None or len(output.prompt_logprobs) == len(output.prompt_token_ids)
    assert isinstance(prompt, str) == (output.prompt is not None)


def call(llm, prompts, fields):
    """Make parameters and call; returns whether it worked."""
    try:
        params = [SamplingParams(**{"max_tokens": 6, **each}) for each in fields]
        outputs = llm.generate(prompts, params)
    except NanofnError:
        return False
    for output, each, prompt in zip(outputs, params, prompts, strict=True):
        assert_whole(output, each, prompt)
    return True


# The engine is shared on purpose: what one call leaves behind would show in the next.
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(calls=st.lists(st.tuples(PROMPTS, st.one_of(some_fields(odds=0), some_fields(odds=3))), min_size=1, max_size=4))
def test_any_call_ends_with_results_or_an_error_of_ours(calls, llm):
    """In a bounded number of steps, and the next call is as if it had not been."""
    before = llm.state.num_steps
    call(llm, [prompt for prompt, _ in calls], [fields for _, fields in calls])
    assert llm.state.num_steps - before <= MOST_STEPS
    assert not llm.has_unfinished
    (output,) = llm.generate([[7, 8, 9]], GREEDY)
    assert output.outputs[0].token_ids == llm.generate([[7, 8, 9]], GREEDY)[0].outputs[0].token_ids


def test_ordinary_values_are_not_refused(llm):
    """The strategies above make calls that work, so the test above is not one about errors alone."""
    fields = {
        "n": 2, "temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.01, "seed": 5, "stop": ["the"], "min_tokens": 2,
        "presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.1, "logit_bias": {5: 1.5},
        "allowed_token_ids": list(range(200, 900)), "bad_words": ["and"], "logprobs": 3, "prompt_logprobs": 1,
        "truncate_prompt_tokens": 4, "skip_reading_prefix_cache": True, "include_stop_str_in_output": True,
        "stop_token_ids": [300],
    }  # fmt: skip
    assert call(llm, ["Once upon a time"], [fields])


def test_random_calls_have_all_fields():
    """A new field is drawn as well."""
    assert VALUES.keys() == {attribute.name for attribute in attrs.fields(SamplingParams)}


def test_any_value_in_any_field_is_taken_or_refused_by_name():
    """The error is a ParameterError of that field, never one of Python's or numpy's."""
    num_refused = num_other = 0
    for attribute in attrs.fields(SamplingParams):
        for value in STRANGE:
            try:
                unbuilt_fields(SamplingParams(**{attribute.name: value}))
            except ParameterError as error:
                num_refused += error.field == attribute.name
                num_other += error.field != attribute.name
    assert num_other == 0
    assert num_refused > 300
