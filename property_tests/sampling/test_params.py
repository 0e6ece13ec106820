"""SamplingParams: vLLM's names and defaults, checked when made, never changed."""

import math
import re
from pathlib import Path

import attrs
import numpy as np
import pytest
from hypothesis import given, strategies as st

from nanofn.errors import NanofnError, ParameterError
from nanofn.sampling.params import UNBUILT, SamplingParams, unbuilt_fields

VLLM_DEFAULTS = {
    "n": 1, "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "temperature": 1.0,
    "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": None, "stop": None, "stop_token_ids": None, "ignore_eos": False,
    "min_tokens": 0, "logprobs": None, "prompt_logprobs": None, "logprob_token_ids": None, "flat_logprobs": False,
    "detokenize": True, "skip_special_tokens": True, "spaces_between_special_tokens": True,
    "include_stop_str_in_output": False, "structured_outputs": None, "logit_bias": None, "allowed_token_ids": None,
    "bad_words": None, "skip_reading_prefix_cache": None, "thinking_token_budget": None, "repetition_detection": None,
    "truncate_prompt_tokens": None,
}  # fmt: skip
"""All but max_tokens, where nanofn has 256 for vLLM's 16."""

BAD = {
    "n": (0, -1, 2.5, True, None, "2"),
    "temperature": (math.nan, math.inf, -0.1, None, "1", True),
    "max_tokens": (0, -1, 2.5, "9", True),
    "min_tokens": (-1, 1.5, 257),
    "top_p": (0.0, 1.1, -0.5, math.nan),
    "top_k": (-2, 1.5),
    "min_p": (-0.1, 1.5),
    "presence_penalty": (-2.1, 2.1, math.nan),
    "frequency_penalty": (-2.1, 2.1),
    "repetition_penalty": (0.0, -1.0, math.inf),
    "seed": (1 << 64, -(1 << 63) - 1, 0.5, "7"),
    "stop": ("", ["a", ""], [3], 7, "\ud800"),
    "stop_token_ids": ([-1], [1.5], ["a"], 7),
    "allowed_token_ids": ([], [-1]),
    "logit_bias": ({-1: 0.0}, {"1": 0.0}, {1: math.nan}, {1: -math.inf}, {1: "2"}, [1, 2], 7),
    "bad_words": ([""], 3, ["a", "\ud800"]),
    "logprobs": (-2, 1.5),
    "prompt_logprobs": (-2,),
    "truncate_prompt_tokens": (0, -2, 1.5),
}


def test_names_and_defaults_are_those_of_vllm():
    """A call written for vLLM means the same here, except that max_tokens is 256 unless said otherwise."""
    assert attrs.asdict(SamplingParams()) == VLLM_DEFAULTS | {"max_tokens": 256}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in BAD.items() for value in values])
def test_a_value_out_of_range_is_refused_by_name(field, value):
    """The error is a ValueError that carries the field and the value, and says both."""
    with pytest.raises(ParameterError, match=rf"^{field} is .*it must be ") as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field
    assert isinstance(caught.value, (ValueError, NanofnError))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": math.inf}, "a finite number of at least 0"),
        ({"top_p": math.inf}, "a number above 0 and at most 1"),
        ({"logit_bias": {1: math.inf}}, "a dict whose values are finite numbers"),
        ({"logit_bias": {"1": 2.0}}, "a dict whose keys are integers of at least 0"),
    ],
)
def test_a_refusal_says_what_may_be_given(fields, message):
    """It rules out what was given."""
    with pytest.raises(ParameterError, match=f"it must be {message}$"):
        SamplingParams(**fields)


def test_only_known_keywords_are_taken():
    """Positional arguments and unknown names are a TypeError."""
    with pytest.raises(TypeError):
        SamplingParams(1)
    with pytest.raises(TypeError, match="best_of"):
        SamplingParams(best_of=2)


def test_integers_of_other_libraries_are_integers():
    """A numpy integer is taken for a count, an id or a seed."""
    params = SamplingParams(n=np.int64(2), max_tokens=np.int32(5), seed=np.uint64(7), stop_token_ids=np.array([1, 2]))
    assert params == SamplingParams(n=2, max_tokens=5, seed=7, stop_token_ids=(1, 2))
    assert {type(params.n), type(params.max_tokens), type(params.seed)} == {int}


def test_numbers_of_other_libraries_are_numbers():
    """fp32 of numpy is taken for a temperature, a penalty or a bias, and still checked."""
    half = np.float32(0.5)
    params = SamplingParams(temperature=half, top_p=half, min_p=half, presence_penalty=half, logit_bias={3: half})
    assert params == SamplingParams(temperature=0.5, top_p=0.5, min_p=0.5, presence_penalty=0.5, logit_bias={3: 0.5})
    assert type(params.temperature) is type(params.logit_bias[0][1]) is float
    for wrong in (np.float32("nan"), np.float32(-1)):
        with pytest.raises(ParameterError, match="temperature"):
            SamplingParams(temperature=wrong)


def test_parameters_are_values():
    """Lists are frozen on the way in, so equal parameters hash alike and nothing can change them later."""
    ids = [3, 4]
    params = SamplingParams(stop_token_ids=ids, stop="x", logit_bias={5: 1.0, 2: -1.0})
    ids.append(5)
    assert params.stop_token_ids == (3, 4)
    assert params.stop == ("x",)
    assert params.logit_bias == ((2, -1.0), (5, 1.0))
    assert hash(params) == hash(SamplingParams(stop_token_ids=(3, 4), stop=["x"], logit_bias={2: -1.0, 5: 1.0}))
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        params.n = 2


def test_a_replaced_copy_is_checked_too():
    """`replace` changes what it is told, keeps the rest, and refuses what the constructor refuses."""
    params = SamplingParams(temperature=0.0, stop_token_ids=[7])
    assert params.replace(max_tokens=3) == SamplingParams(temperature=0.0, stop_token_ids=[7], max_tokens=3)
    with pytest.raises(ParameterError, match="max_tokens is 0"):
        params.replace(max_tokens=0)


def test_a_seed_of_minus_one_is_no_seed():
    """As in vLLM."""
    assert SamplingParams(seed=-1).seed is None


@given(seed=st.integers(-(1 << 63), (1 << 64) - 1).filter(lambda seed: seed != -1))
def test_every_other_seed_of_64_bits_is_kept(seed):
    """Signed or unsigned, whatever fits in 64 bits."""
    assert SamplingParams(seed=seed).seed == seed


def test_fields_that_nothing_carries_out_are_named():
    """A field away from its default is reported exactly if it is not built; other ways to say nothing are not."""
    away = {
        "presence_penalty": 1.0, "frequency_penalty": 1.0, "repetition_penalty": 1.5, "top_p": 0.5, "top_k": 5,
        "min_p": 0.1, "min_tokens": 1, "stop": "x", "include_stop_str_in_output": True, "logit_bias": {1: 1.0},
        "allowed_token_ids": [1], "bad_words": ["x"], "logprobs": 0, "prompt_logprobs": 1, "logprob_token_ids": [1],
        "flat_logprobs": True, "truncate_prompt_tokens": 5, "structured_outputs": {"regex": "a"},
        "skip_reading_prefix_cache": True, "thinking_token_budget": 5,
        "repetition_detection": {"min_count": 2},
    }  # fmt: skip
    for name in UNBUILT:
        assert unbuilt_fields(SamplingParams(**{name: away[name]})) == (name,)
    built = SamplingParams(n=2, temperature=0.5, max_tokens=3, seed=4, ignore_eos=True, stop_token_ids=[1])
    assert unbuilt_fields(built) == ()
    assert unbuilt_fields(SamplingParams(stop=[], bad_words=[], logit_bias={}, top_k=-1)) == ()


def test_the_page_has_every_field():
    """`docs/sampling.md` names each field in the first column of its table."""
    page = (Path(__file__).parents[2] / "docs" / "sampling.md").read_text(encoding="utf-8")
    table = page.partition("## Fields")[2].partition("\n## ")[0]
    named = {name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.partition(" | ")[0])}
    assert named == {attribute.name for attribute in attrs.fields(SamplingParams)}
