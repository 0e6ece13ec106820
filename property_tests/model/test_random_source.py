"""Random weights for a folder without any: whole, finite, always the same, and refused where they cannot be."""

import json
import shutil

import pytest
import torch

from model.checkpoints import FAMILIES, make_fixture
from nanofn import LLM, SamplingParams
from nanofn.device.checkpoint import load_checkpoint
from nanofn.device.random_source import random_source
from nanofn.errors import CheckpointError, ConfigError, UnsupportedModelError
from nanofn.llm.locate import embedded_model


def tensors_of(params):
    """All tensors of a tree, by place."""
    found = {"embedding": params.embedding, "final_norm": params.final_norm, "head": params.head}
    for index, layer in enumerate(params.layers):
        names = [name for name in layer.__slots__ if isinstance(getattr(layer, name, None), torch.Tensor)]
        found |= {f"{index}.{name}": getattr(layer, name) for name in names}
    return found


@pytest.fixture
def bare(tmp_path):
    """The embedded model's folder without its weights."""
    return shutil.copytree(embedded_model(), tmp_path / "bare", ignore=shutil.ignore_patterns("*.safetensors"))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_tree_is_that_of_the_files(name, tmp_path):
    """Every architecture: the tensors that files would give, by name, shape and dtype, and other numbers in them."""
    make_fixture(name, tmp_path)
    read, drawn = (load_checkpoint(tmp_path, is_dummy=is_dummy) for is_dummy in (False, True))
    assert (read.config, read.num_bytes) == (drawn.config, drawn.num_bytes)
    read, drawn = tensors_of(read.params), tensors_of(drawn.params)
    assert {name: (x.shape, x.dtype) for name, x in read.items()} == {
        name: (x.shape, x.dtype) for name, x in drawn.items()
    }
    assert not any(torch.equal(read[name], drawn[name]) for name in read)
    assert all(bool(torch.isfinite(x).all()) for x in drawn.values())


def test_sizes_are_what_keeps_activations_their_size(tmp_path):
    """A matrix has one over the root of its width, norms are about one, biases about nothing, the last norm has both signs."""
    make_fixture("qwen3 with biases", tmp_path, hidden_size=192, head_dim=32)
    params = load_checkpoint(tmp_path, is_dummy=True).params
    for x in (params.layers[0].qkv_weight, params.layers[1].down_weight):
        assert x.std().item() == pytest.approx(x.shape[-1] ** -0.5, rel=0.05)
    assert params.layers[0].input_norm.mean().item() == pytest.approx(1, abs=0.03)
    assert params.layers[0].qkv_bias.mean().item() == pytest.approx(0, abs=0.03)
    assert 0.3 < (params.final_norm > 0).float().mean().item() < 0.7


def test_weights_are_always_the_same_and_a_cast_comes_last(bare):
    """Twice the same; in fp32 those of the config's dtype."""
    one, other, wide = (
        tensors_of(load_checkpoint(bare, dtype=dtype, is_dummy=True).params) for dtype in (None, None, torch.float32)
    )
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert {x.dtype for x in wide.values()} == {torch.float32}
    assert all(torch.equal(one[name].float(), wide[name]) for name in one)


def test_an_engine_runs_on_random_weights(bare, capsys):
    """Config and tokenizer are enough; the line on stderr says that the weights are random, and no rate of reading."""
    texts = []
    for _ in range(2):
        with LLM(bare, load_format="dummy", device="cpu", max_model_len=64, max_num_seqs=4) as llm:
            params = SamplingParams(temperature=0.8, max_tokens=20, ignore_eos=True, seed=3)
            texts.append([output.outputs[0].token_ids for output in llm.generate(["Once upon", "a"], params)])
    assert texts[0] == texts[1]
    assert all(len(set(ids)) > 5 for ids in texts[0])
    said = capsys.readouterr().err
    assert "random weights" in said
    assert "GB/s" not in said


def test_weights_that_lie_there_are_not_looked_at(bare):
    """Not even damaged ones."""
    before = tensors_of(load_checkpoint(bare, is_dummy=True).params)
    (bare / "model.safetensors").write_bytes(b"junk")
    after = tensors_of(load_checkpoint(bare, is_dummy=True).params)
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    "changes", [{"num_hidden_layers": 10**9}, {"vocab_size": 1 << 40}, {"intermediate_size": 1 << 40}]
)
def test_weights_that_do_not_fit_are_refused_before_they_are_made(changes, bare):
    """What they take and what there is are in the message; a billion layers are not even listed."""
    config = json.loads((bare / "config.json").read_text()) | changes
    (bare / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"take at least [\d.]+ GiB, cpu has [\d.]+ GiB; use a smaller dtype"):
        load_checkpoint(bare, is_dummy=True)


def test_a_billion_experts_are_not_listed(tmp_path):
    """They do not fit either."""
    make_fixture("qwen3 moe", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"num_experts": 10**9, "num_local_experts": 10**9}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="take at least"):
        load_checkpoint(tmp_path, is_dummy=True)


def test_many_experts_in_many_layers_are_not_listed(tmp_path):
    """Few enough in a layer, few enough layers: all together they do not fit."""
    make_fixture("qwen3 moe", tmp_path)
    sizes = {"num_experts": 10**6, "num_local_experts": 10**6, "num_hidden_layers": 10**6}
    config = json.loads((tmp_path / "config.json").read_text()) | sizes
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="take at least"):
        load_checkpoint(tmp_path, is_dummy=True)


def test_what_cannot_be_made_up_is_refused(bare, tmp_path):
    """No config, another architecture, a GGUF file, another word than those that are known."""
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        LLM(tmp_path, load_format="dummy")
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match="is not a folder; give one that holds config"):
        LLM(tmp_path / "x.gguf", load_format="dummy")
    with pytest.raises(ConfigError, match=r"load_format is 'npcache'; it must be one of auto, dummy"):
        LLM(bare, load_format="npcache")
    (bare / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    with pytest.raises(UnsupportedModelError, match="mamba"):
        LLM(bare, load_format="dummy")


@pytest.mark.gpu
def test_a_gpu_makes_its_own(bare):
    """On the device, without a copy on the host: all finite, and twice the same."""
    pieces = list(
        random_source(bare, None, "cuda").read(random_source(bare, None, "cuda").stored, torch.device("cuda"))
    )
    assert {piece.rows.device.type for piece in pieces} == {"cuda"}
    one, other = (tensors_of(load_checkpoint(bare, device="cuda", is_dummy=True).params) for _ in range(2))
    assert all(torch.equal(one[name], other[name]) and bool(torch.isfinite(one[name]).all()) for name in one)
