"""generation_config.json: what it says holds for calls that give no parameters, and for those alone."""

import json
import shutil

import pytest

from nanofn import LLM, SamplingParams
from nanofn.errors import CheckpointError
from nanofn.llm.assemble import read_generation_defaults
from nanofn.llm.locate import embedded_model

PROMPT = "Once upon a time"


@pytest.fixture
def folder(tmp_path):
    """A copy of the embedded model, its generation_config.json written by the test."""
    return shutil.copytree(embedded_model(), tmp_path / "model")


def write_defaults(folder, **values):
    """Replace the file."""
    (folder / "generation_config.json").write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("theirs", "value", "ours"),
    [
        ("temperature", 0.7, "temperature"),
        ("top_p", 0.8, "top_p"),
        ("top_k", 20, "top_k"),
        ("min_p", 0.05, "min_p"),
        ("repetition_penalty", 1.05, "repetition_penalty"),
        ("max_new_tokens", 77, "max_tokens"),
    ],
)
def test_each_key_sets_one_parameter(theirs, value, ours):
    """Under our name, the others as they are; null and keys that are no parameters say nothing, nor does do_sample."""
    found, left_out = read_generation_defaults(
        {theirs: value, "do_sample": False, "bos_token_id": 1, "max_length": None}
    )
    assert found == SamplingParams(**{ours: value})
    assert left_out == ()
    assert read_generation_defaults({theirs: None})[0] == SamplingParams()


def test_a_call_without_parameters_is_a_call_with_the_files(folder):
    """Three greedy tokens where the file says so; what a caller gives replaces all of it."""
    write_defaults(folder, temperature=0.0, max_new_tokens=3)
    with LLM(folder, device="cpu", max_model_len=64, max_num_seqs=2) as llm:
        own = llm.get_default_sampling_params()
        assert own == SamplingParams(temperature=0.0, max_tokens=3)
        first, second, given = (
            llm.generate(PROMPT, params)[0].outputs[0].token_ids
            for params in (None, own, SamplingParams(temperature=0.0, max_tokens=5))
        )
    assert first == second == given[:3]
    assert (len(first), len(given)) == (3, 5)


@pytest.mark.parametrize(
    ("values", "message"), [({"temperature": "hot"}, "temperature is 'hot'"), ({"top_p": 0.0}, r"top_p is 0\.0")]
)
def test_a_value_out_of_range_names_the_file(folder, values, message):
    """The caller gave no parameter, so the error is the checkpoint's."""
    write_defaults(folder, **values)
    with pytest.raises(CheckpointError, match=r"generation_config\.json cannot be used: " + message):
        LLM(folder, device="cpu", max_model_len=64, max_num_seqs=2)
