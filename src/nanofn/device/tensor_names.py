"""Which stored tensors make which parameters: the names and shapes of transformers' checkpoints."""

from attrs import frozen

from nanofn.model.config import ModelConfig
from nanofn.model.experts_config import ExpertsConfig

HEAD = "lm_head.weight"
"""The head's name. A tied checkpoint may hold it all the same; it is a copy of the embedding."""

_GATE_UP = ("gate", "up")


@frozen
class Part:
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
        num_experts: The rows are divided among so many, along a first axis of their own; None where there is no such axis.
    """

    field: str
    sources: tuple[Part, ...]
    num_experts: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole."""
        num_rows, rest = sum(source.shape[0] for source in self.sources), self.sources[0].shape[1:]
        return (
            (num_rows, *rest) if self.num_experts is None else (self.num_experts, num_rows // self.num_experts, *rest)
        )


def layer_parameters(config: ModelConfig, layer: int) -> tuple[Parameter, ...]:
    """Name what makes one decoder layer; what the model does not have is left out."""
    prefix = f"model.layers.{layer}."
    if config.experts is not None and config.experts.is_in(layer):
        return (*_attention(config, prefix), *_mixture(config, config.experts, prefix))
    return (*_attention(config, prefix), *_dense(config, prefix))


def _attention(config: ModelConfig, prefix: str) -> list[Parameter]:
    hidden = config.hidden_size
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    qkv = (("q", q_size), ("k", kv_size), ("v", kv_size))
    attention = f"{prefix}self_attn."
    found = [
        _parameter("input_norm", Part(f"{prefix}input_layernorm.weight", (hidden,))),
        _parameter("qkv_weight", *(Part(f"{attention}{name}_proj.weight", (size, hidden)) for name, size in qkv)),
        _parameter("output_weight", Part(f"{attention}o_proj.weight", (hidden, q_size))),
        _parameter("mlp_norm", Part(f"{prefix}post_attention_layernorm.weight", (hidden,))),
    ]
    if config.has_qkv_bias:
        found.append(_parameter("qkv_bias", *(Part(f"{attention}{name}_proj.bias", (size,)) for name, size in qkv)))
    if config.has_output_bias:
        found.append(_parameter("output_bias", Part(f"{attention}o_proj.bias", (hidden,))))
    if config.has_qk_norm:
        norms = ("q_norm", "k_norm")
        found += [_parameter(name, Part(f"{attention}{name}.weight", (config.head_dim,))) for name in norms]
    return found


def _dense(config: ModelConfig, prefix: str) -> list[Parameter]:
    hidden, inner = config.hidden_size, config.intermediate_size
    return [
        _parameter("gate_up_weight", *(Part(f"{prefix}mlp.{name}_proj.weight", (inner, hidden)) for name in _GATE_UP)),
        _parameter("down_weight", Part(f"{prefix}mlp.down_proj.weight", (hidden, inner))),
    ]


def _mixture(config: ModelConfig, experts: ExpertsConfig, prefix: str) -> list[Parameter]:
    hidden, inner, num_experts = config.hidden_size, experts.intermediate_size, experts.num_experts
    each = [f"{prefix}mlp.experts.{expert}." for expert in range(num_experts)]
    gate_up = tuple(Part(f"{expert}{name}_proj.weight", (inner, hidden)) for expert in each for name in _GATE_UP)
    down = tuple(Part(f"{expert}down_proj.weight", (hidden, inner)) for expert in each)
    return [
        _parameter("router_weight", Part(f"{prefix}mlp.gate.weight", (num_experts, hidden))),
        Parameter("gate_up_weight", gate_up, num_experts),
        Parameter("down_weight", down, num_experts),
    ]


def _parameter(field: str, *sources: Part) -> Parameter:
    return Parameter(field, sources)


def outer_parameters(config: ModelConfig) -> tuple[Parameter, ...]:
    """Name what lies outside the layers; a tied head is left out."""
    matrix = (config.vocab_size, config.hidden_size)
    found = [
        Parameter("embedding", (Part("model.embed_tokens.weight", matrix),)),
        Parameter("final_norm", (Part("model.norm.weight", (config.hidden_size,)),)),
    ]
    return (*found,) if config.tie_word_embeddings else (*found, Parameter("head", (Part(HEAD, matrix),)))


def all_parameters(config: ModelConfig) -> list[Parameter]:
    """Name everything: what lies outside the layers, then layer after layer."""
    layers = [layer_parameters(config, layer) for layer in range(config.num_layers)]
    return [parameter for group in (outer_parameters(config), *layers) for parameter in group]


def is_known_surplus(config: ModelConfig, name: str) -> bool:
    """Whether a stored tensor may be passed over: a tied head's copy, or rotary frequencies, which are computed."""
    return (config.tie_word_embeddings and name == HEAD) or name.endswith("rotary_emb.inv_freq")
