"""Which stored tensors make which parameters: the names and shapes of transformers' checkpoints."""

from attrs import frozen

from nanofn.model.config import ModelConfig

HEAD = "lm_head.weight"
"""The head's name. A tied checkpoint may hold it all the same; it is a copy of the embedding."""


@frozen
class Source:
    """One stored tensor.

    Attributes:
        name: As in the file.
        shape: What the config asks for.
    """

    name: str
    shape: tuple[int, ...]


@frozen
class Parameter:
    """One tensor of the parameter tree: stored tensors one below the other.

    Attributes:
        field: Its attribute in `LayerParams` or `ModelParams`.
        sources: From the first row down.
    """

    field: str
    sources: tuple[Source, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole."""
        return (sum(source.shape[0] for source in self.sources), *self.sources[0].shape[1:])


def layer_parameters(config: ModelConfig, layer: int) -> tuple[Parameter, ...]:
    """Name what makes one decoder layer; what the model does not have is left out."""
    prefix = f"model.layers.{layer}."
    hidden, inner = config.hidden_size, config.intermediate_size
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    qkv = (("q", q_size), ("k", kv_size), ("v", kv_size))
    gate_up = ("gate", "up")
    found: list[tuple[str, list[tuple[str, tuple[int, ...]]]]] = [
        ("input_norm", [("input_layernorm.weight", (hidden,))]),
        ("qkv_weight", [(f"self_attn.{name}_proj.weight", (size, hidden)) for name, size in qkv]),
        ("output_weight", [("self_attn.o_proj.weight", (hidden, q_size))]),
        ("mlp_norm", [("post_attention_layernorm.weight", (hidden,))]),
        ("gate_up_weight", [(f"mlp.{name}_proj.weight", (inner, hidden)) for name in gate_up]),
        ("down_weight", [("mlp.down_proj.weight", (hidden, inner))]),
    ]
    if config.has_qkv_bias:
        found.append(("qkv_bias", [(f"self_attn.{name}_proj.bias", (size,)) for name, size in qkv]))
    if config.has_output_bias:
        found.append(("output_bias", [("self_attn.o_proj.bias", (hidden,))]))
    if config.has_qk_norm:
        found += [(f"{name}_norm", [(f"self_attn.{name}_norm.weight", (config.head_dim,))]) for name in ("q", "k")]
    return tuple(
        Parameter(field, tuple(Source(prefix + name, shape) for name, shape in sources)) for field, sources in found
    )


def outer_parameters(config: ModelConfig) -> tuple[Parameter, ...]:
    """Name what lies outside the layers; a tied head is left out."""
    matrix = (config.vocab_size, config.hidden_size)
    found = [
        Parameter("embedding", (Source("model.embed_tokens.weight", matrix),)),
        Parameter("final_norm", (Source("model.norm.weight", (config.hidden_size,)),)),
    ]
    return (*found,) if config.tie_word_embeddings else (*found, Parameter("head", (Source(HEAD, matrix),)))


def is_known_surplus(config: ModelConfig, name: str) -> bool:
    """Whether a stored tensor may be passed over: a tied head's copy, or rotary frequencies, which are computed."""
    return (config.tie_word_embeddings and name == HEAD) or name.endswith("rotary_emb.inv_freq")
