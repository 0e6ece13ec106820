"""The count of experts that a decode step goes to."""

import pytest
import torch

from experts_hit import experts_hit, recorded_choices
from generate_work import runs_of
from model_dimensions import config_json
from nanofn import LLM
from nanofn.device.fused_executor import FusedExecutor
from nanofn.model import decoder
from nanofn.model.config import from_dict
from random_checkpoint import make_checkpoint


@pytest.mark.parametrize(
    ("name", "executor"), [("tiny", "plain"), ("tiny-mixture", "plain"), ("tiny-mixture", "fused")]
)
def test_the_count_is_between_what_one_token_needs_and_all(name, executor, tmp_path, monkeypatch):
    """Four sequences of a model of 4 experts, 2 a token, choose 2 to 4 of them; a dense model has nothing to count."""
    if executor == "fused":
        monkeypatch.setattr("nanofn.llm.assemble.EagerExecutor", FusedExecutor)
    (run,) = runs_of("batch64", "smoke", 2_048, 0)
    folder = make_checkpoint(name, tmp_path / name)
    with LLM(folder, device="cpu", block_size=16, max_model_len=64, max_num_seqs=8) as llm:
        if executor == "fused":
            llm._executor._pool = object()  # as where steps are captured, which a CPU could not
        found = experts_hit(llm, run, 3)
    if name == "tiny":
        assert found == {}
    else:
        assert list(found) == [4]
        assert 2 <= found[4] <= 4


def test_choices_are_recorded_as_they_are():
    """Every routed layer adds the ids it chose, and afterwards nothing is recorded any more."""
    experts = from_dict(config_json("tiny-mixture")).experts
    router, plain = torch.eye(4, 64), decoder.route
    x = torch.zeros(2, 64)
    x[0, 3] = x[0, 1] = x[1, 2] = x[1, 0] = 5.0
    with recorded_choices() as chosen:
        decoder.gated_unit(x, torch.zeros(4, 48, 64), torch.zeros(4, 64, 24), router, experts)
    assert [[{1, 3}, {0, 2}]] == [[set(ids) for ids in each.tolist()] for each in chosen]
    assert decoder.route is plain
