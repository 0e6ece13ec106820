"""What of a config.json is read, in either schema, and what is refused by name."""

import contextlib

import pytest
from hypothesis import given, settings, strategies as st

from model.checkpoints import FAMILIES, SIZES
from nanofn.device.damage import typed_errors
from nanofn.errors import CheckpointError, ConfigError, UnsupportedModelError
from nanofn.model.config import ModelConfig, from_dict
from nanofn.model.rope import make_rope

QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-06,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "eos_token_id": 151645,
    "sliding_window": None,
    "use_sliding_window": False,
    "max_window_layers": 28,
}
FOUR = {"rope_theta": 1000000, "rope_scaling": None, "torch_dtype": "bfloat16"}
FIVE = {"rope_parameters": {"rope_theta": 1000000, "rope_type": "default"}, "dtype": "bfloat16"}
LLAMA = QWEN3 | FOUR | {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}

EXPECTED = ModelConfig(
    model_type="qwen3",
    vocab_size=151936,
    hidden_size=1024,
    intermediate_size=3072,
    num_layers=28,
    num_heads=16,
    num_kv_heads=8,
    head_dim=128,
    rms_norm_eps=1e-6,
    rope_theta=1e6,
    max_position_embeddings=40960,
    tie_word_embeddings=True,
    has_qk_norm=True,
    dtype="bfloat16",
    eos_token_ids=(151645,),
)


@pytest.mark.parametrize("schema", [FOUR, FIVE], ids=["transformers 4", "transformers 5"])
def test_both_schemas_mean_the_same(schema):
    """`rope_theta` or `rope_parameters`, `torch_dtype` or `dtype`: one config."""
    assert from_dict(QWEN3 | schema) == EXPECTED


def test_reading_changes_nothing():
    """The dict that was read is as it was."""
    before = {key: dict(value) if isinstance(value, dict) else value for key, value in (QWEN3 | FIVE).items()}
    given = QWEN3 | FIVE
    from_dict(given)
    assert given == before


@pytest.mark.parametrize("name", FAMILIES)
def test_what_transformers_writes_is_read(name):
    """A config of transformers as it is saved: the same sizes, and the flags of its family."""
    config_class, _, sizes = FAMILIES[name]
    written = config_class(**(SIZES | sizes)).to_dict()
    config = from_dict(written)
    assert config.num_layers == written["num_hidden_layers"]
    assert config.head_dim == (written.get("head_dim") or SIZES["hidden_size"] // SIZES["num_attention_heads"])
    assert config.has_qk_norm == name.startswith("qwen3")
    assert config.has_qkv_bias == (name.startswith("qwen2") or "biases" in name)
    assert config.has_output_bias == ("biases" in name)
    assert config.eos_token_ids == (3,)


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({"head_dim": None, "model_type": "llama", "architectures": None}, "head_dim", 64),
        ({"head_dim": None, "model_type": "qwen3"}, "head_dim", 128),
        ({"num_key_value_heads": None}, "num_kv_heads", 16),
        ({"tie_word_embeddings": None}, "tie_word_embeddings", False),
        ({"torch_dtype": "torch.float16"}, "dtype", "float16"),
        ({"torch_dtype": None}, "dtype", None),
        ({"eos_token_id": [1, 2]}, "eos_token_ids", (1, 2)),
        ({"eos_token_id": None}, "eos_token_ids", ()),
        ({"hidden_act": "swish"}, "model_type", "qwen3"),
        ({"rope_scaling": {"type": "default"}}, "rope_theta", 1e6),
        ({"rope_theta": 500000.5}, "rope_theta", 500000.5),
        ({"model_type": "mistral", "architectures": [], "sliding_window": 40960}, "model_type", "mistral"),
        ({"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 28}, "model_type", "qwen3"),
        ({"sliding_window": 4096}, "model_type", "qwen3"),
        ({"layer_types": ["full_attention"] * 28}, "num_layers", 28),
    ],
)
def test_defaults_and_switches_that_are_off_are_accepted(change, field, value):
    """What is absent gets the family's default; a window that no layer uses is none."""
    assert getattr(from_dict(QWEN3 | FOUR | change), field) == value


REFUSED = {
    "another model_type": ({"model_type": "gemma3"}, "model_type 'gemma3'.*llama, mistral, qwen2, qwen3, qwen3_moe"),
    "another mixture of experts": ({"model_type": "qwen2_moe"}, "model_type 'qwen2_moe'"),
    "another head": ({"architectures": ["Qwen3ForSequenceClassification"]}, "Qwen3ForSequenceClassification"),
    "quantised weights": ({"quantization_config": {"quant_method": "awq"}}, "quantization_config .*'awq'"),
    "another activation": ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    "dynamic": ({"rope_scaling": {"type": "dynamic"}}, "rope type 'dynamic'"),
    "rope by layer type": ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "differ by layer type"),
    "partial rotation": ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor 0\.5"),
    "a window": ({"use_sliding_window": True, "sliding_window": 512, "max_window_layers": 5}, "sliding_window 512"),
    "Mistral's window": (
        {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 4096},
        "sliding_window 4096",
    ),
    "a sliding layer": ({"layer_types": ["full_attention", "sliding_attention"]}, "'sliding_attention'"),
    "biases in the gated unit": ({"mlp_bias": True}, "mlp_bias"),
    "multimodal rotation": ({"use_mrope": True}, "use_mrope"),
    "eight-bit weights": ({"torch_dtype": "float8_e4m3fn"}, "dtype 'float8_e4m3fn'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_covered_is_refused_by_name(case):
    """A feature in use that would silently change the text is named, with what is supported."""
    change, message = REFUSED[case]
    with pytest.raises(UnsupportedModelError, match=message):
        from_dict(QWEN3 | FOUR | change)


BROKEN = {
    "no model_type": ({"model_type": None}, "no 'model_type'"),
    "no hidden_size": ({"hidden_size": None}, "no 'hidden_size'"),
    "no max_position_embeddings": ({"max_position_embeddings": None}, "no 'max_position_embeddings'"),
    "a size of 0": ({"vocab_size": 0}, "vocab_size 0; it must be an integer of at least 1"),
    "a fractional size": ({"num_hidden_layers": 2.5}, r"num_hidden_layers 2\.5"),
    "a negative eps": ({"rms_norm_eps": -1e-6}, "rms_norm_eps"),
    "a theta of 0": ({"rope_theta": 0}, "rope_theta 0; it must be a positive number"),
    "heads that do not divide": ({"num_key_value_heads": 5}, "16 attention heads and 5 key/value heads"),
    "an odd head_dim": ({"head_dim": 127}, "head_dim 127"),
    "an EOS that is no id": ({"eos_token_id": "<end>"}, "eos_token_id '<end>'"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_config_that_makes_no_sense_is_refused_with_the_number(case):
    """A missing or impossible value is an error of the checkpoint that says which."""
    change, message = BROKEN[case]
    with pytest.raises(CheckpointError, match=message):
        from_dict(QWEN3 | FOUR | change)


@pytest.mark.parametrize("name", ["Qwen3MoeForCausalLM", "FooForCausalLM", "LlamaForCausalLM"])
def test_another_architecture_under_a_known_type_is_refused(name: str) -> None:
    """A name that only ends like ours is another model."""
    with pytest.raises(UnsupportedModelError, match=f"architecture '{name}'"):
        from_dict(QWEN3 | {"architectures": [name]})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["rope_type", "factor", "type", "x"]), inner)
    ),
    max_leaves=5,
)
KEYS = sorted(
    {*(QWEN3 | FOUR | FIVE), "layer_types", "mlp_bias", "num_experts", "num_experts_per_tok", "moe_intermediate_size",
     "mlp_only_layers", "decoder_sparse_step", "norm_topk_prob", "partial_rotary_factor", "attention_bias", "use_mrope",
     "quantization_config", "original_max_position_embeddings", "max_window_layers"}
)  # fmt: skip


@given(
    base=st.sampled_from(["qwen3", "qwen3_moe", "llama", "mistral", "qwen2"]),
    changes=st.dictionaries(st.sampled_from(KEYS), JSON, max_size=4),
)
@settings(max_examples=300)
def test_whatever_stands_in_a_config_it_is_read_or_refused(base, changes):
    """Any value of any key: a config, or an error of nanofn's; then its frequencies can be computed."""
    with contextlib.suppress(ConfigError), typed_errors("config.json"):
        config = from_dict(QWEN3 | FOUR | {"model_type": base, "architectures": None} | changes)
        if config.head_dim < 1024:
            make_rope(config)
