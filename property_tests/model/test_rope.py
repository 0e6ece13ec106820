"""Rotary frequencies of every scaling against transformers', bit for bit, and what a config may say of them."""

import attrs
import pytest
import torch
from hypothesis import given, strategies as st
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from model.checkpoints import FAMILIES, LLAMA3, YARN, make_fixture
from model.paging import Entry, relative_error, run_to_end, start_paging
from nanofn.device.checkpoint import load_checkpoint
from nanofn.errors import CheckpointError, UnsupportedModelError
from nanofn.model.config import from_dict
from nanofn.model.layers import rope_tables
from nanofn.model.rope import make_rope
from nanofn.model.rope_scaling import MAX_POSITIONS, LinearScaling, Llama3Scaling, YarnScaling
from nanofn.model.rotations import cos_sin_table

FACTORS = st.floats(1.0, 64.0)
THETAS = st.floats(100.0, 1e7)
ORIGINALS = st.sampled_from([512, 2048, 4096, 8192, 32768])


def llama(head_dim: int, **rope: object) -> LlamaConfig:
    """A config of transformers that rotates so."""
    sizes = {"hidden_size": 4 * head_dim, "num_attention_heads": 4, "head_dim": head_dim}
    return LlamaConfig(**sizes, max_position_embeddings=65536, rope_parameters=rope)


@st.composite
def scaled_ropes(draw: st.DrawFn) -> dict[str, object]:
    """Rotation parameters of any scaling."""
    kind = draw(st.sampled_from(["default", "linear", "llama3", "yarn"]))
    rope: dict[str, object] = {"rope_type": kind, "rope_theta": draw(THETAS)}
    if kind != "default":
        rope["factor"] = draw(FACTORS)
    if kind in {"llama3", "yarn"}:
        rope["original_max_position_embeddings"] = draw(ORIGINALS)
    if kind == "llama3":
        rope["low_freq_factor"] = draw(st.floats(0.5, 3.0))
        rope["high_freq_factor"] = draw(st.floats(3.5, 10.0))
    if kind == "yarn":
        numbers = {"beta_fast": (8.0, 64.0), "beta_slow": (0.5, 4.0), "attention_factor": (0.5, 2.0)}
        numbers |= {"mscale": (0.5, 2.0), "mscale_all_dim": (0.5, 2.0)}
        chosen = draw(st.sets(st.sampled_from(sorted(numbers))))
        rope |= {name: draw(st.floats(*numbers[name])) for name in sorted(chosen)}
        if draw(st.booleans()):
            rope["truncate"] = draw(st.booleans())
    return rope


@given(rope=scaled_ropes(), head_dim=st.sampled_from([8, 64, 80, 128]), first=st.integers(0, 40_000))
def test_frequencies_and_tables_are_those_of_transformers(rope, head_dim, first):
    """Whatever the scaling and its numbers: the same frequencies, cosines and sines, to the bit."""
    config = llama(head_dim, **rope)
    theirs, ours = LlamaRotaryEmbedding(config), make_rope(from_dict(config.to_dict()))
    assert torch.equal(ours.inverse_frequencies, theirs.inv_freq)
    assert ours.attention_factor == theirs.attention_scaling
    positions = torch.arange(first, first + 5)
    cos, sin = rope_tables(positions, ours)
    their_cos, their_sin = theirs(torch.zeros(1), positions[None])
    assert torch.equal(cos[:, 0], their_cos[0])
    assert torch.equal(sin[:, 0, head_dim // 2 :], their_sin[0, :, head_dim // 2 :])
    assert torch.equal(sin[:, 0, : head_dim // 2], -their_sin[0, :, : head_dim // 2])
    table = cos_sin_table(ours, first + 5)[first:]
    assert torch.equal(table, torch.cat((cos[:, 0, : head_dim // 2], sin[:, 0, head_dim // 2 :]), dim=1))


@pytest.mark.parametrize("name", [name for name in FAMILIES if "rope_parameters" in FAMILIES[name][2]])
def test_a_scaling_that_is_dropped_would_be_noticed(name, tmp_path):
    """The fixtures' logits far out depend on the scaling: without it they differ by more than a hundredth."""
    params = load_checkpoint(make_fixture(name, tmp_path).folder, dtype=torch.float32).params
    plain = attrs.evolve(params, rope=make_rope(attrs.evolve(params.config, rope_scaling=None)))
    sequence = [place * 7 % 211 for place in range(40)]
    found = []
    for each in (params, plain):
        paging = start_paging(each, [sequence], 16)
        paging.first_position = 40_000
        found += run_to_end(paging, [[Entry(0, 40)]])
    assert relative_error(found[1], found[0]) > 1e-2


BASE = {
    "model_type": "llama",
    "vocab_size": 8,
    "hidden_size": 64,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": 4096,
    "rope_theta": 1e4,
}


@pytest.mark.parametrize(
    ("rope", "scaling", "longest"),
    [
        ({"type": "linear", "factor": 4}, LinearScaling(factor=4.0), 16384),
        ({"rope_type": "linear", "factor": 1e300}, LinearScaling(factor=1e300), MAX_POSITIONS),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048},
            YarnScaling(factor=4.0, original_max_position_embeddings=2048.0),
            8192,
        ),
        (
            {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 2048},
            YarnScaling(factor=2.0, original_max_position_embeddings=2048.0),
            4096,
        ),
        (
            {"type": "yarn", "factor": 4.0, "beta_fast": None},
            YarnScaling(factor=4.0, original_max_position_embeddings=4096.0),
            16384,
        ),
        (
            {name: value for name, value in LLAMA3.items() if name != "rope_theta"},
            Llama3Scaling(
                factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=128.0
            ),
            4096,
        ),
    ],
)
def test_a_stretched_context_is_read(rope, scaling, longest):
    """Which scaling, and how long a text may be: YaRN and linear scaling stretch the config's length, llama3's counts it."""
    config = from_dict(BASE | {"rope_scaling": rope})
    assert (config.rope_theta, config.rope_scaling, config.max_position_embeddings) == (1e4, scaling, longest)


def test_a_file_edited_by_hand_keeps_its_base():
    """`rope_scaling` added to a file that transformers 5 wrote: the scaling of the one, the base of the other."""
    written = {"rope_type": "default", "rope_theta": 5e6}
    config = from_dict(BASE | {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": written})
    assert (config.rope_theta, config.rope_scaling) == (5e6, LinearScaling(factor=2.0))


def test_an_original_length_beside_the_scaling_wins():
    """As in transformers, for files that say it there."""
    config = from_dict(BASE | {"rope_scaling": YARN, "original_max_position_embeddings": 1000})
    assert config.rope_scaling == YarnScaling(factor=4.0, original_max_position_embeddings=1000.0)


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "su", "mrope", "proportional", "ntk", 3, ["yarn"]])
def test_other_scalings_are_refused_by_name(kind):
    """Under either spelling of the key, with what is supported."""
    for key in ("type", "rope_type"):
        with pytest.raises(UnsupportedModelError, match=r"rope type .* supported are default, linear, llama3, yarn"):
            from_dict(BASE | {"rope_scaling": {key: kind, "factor": 2.0}})


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"rope_type": "linear"}, "factor None; it must be a positive number"),
        ({"rope_type": "linear", "factor": 0}, "factor 0"),
        ({"rope_type": "linear", "factor": 10**400}, "factor 1000"),
        ({"rope_type": "yarn", "factor": "4"}, "factor '4'"),
        ({"rope_type": "yarn", "factor": 4.0, "beta_slow": -1}, "beta_slow -1"),
        ({"rope_type": "yarn", "factor": 4.0, "truncate": 1}, "truncate 1; it must be true or false"),
        ({"rope_type": "yarn", "factor": 4.0, "rope_theta": 1.0}, "a base above 1"),
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}, "high_freq_factor None"),
        (LLAMA3 | {"low_freq_factor": 4.0}, r"high_freq_factor 4\.0; it must be above low_freq_factor 4\.0"),
    ],
    ids=str,
)
def test_numbers_out_of_range_are_named(rope, message):
    """A missing or impossible number is an error of the checkpoint that says which."""
    with pytest.raises(CheckpointError, match=message):
        from_dict(BASE | {"rope_scaling": rope})


def test_two_scalings_that_contradict_each_other_are_refused():
    """Nobody can know which one is meant."""
    other = YARN | {"factor": 2.0}
    with pytest.raises(CheckpointError, match="stretch differently"):
        from_dict(BASE | {"rope_scaling": YARN, "rope_parameters": other})
    assert from_dict(BASE | {"rope_scaling": YARN, "rope_parameters": YARN}).rope_scaling is not None
