"""Weights as a frozen tree of tensors, with Q, K, V and gate, up joined into one matrix each."""

from attrs import frozen
from torch import Tensor

from nanofn.errors import ConfigError
from nanofn.model.config import ModelConfig
from nanofn.model.rope import Rope


@frozen(eq=False, kw_only=True)
class LayerParams:
    """One decoder layer. On a tensor-parallel rank, head and intermediate axes hold that rank's share.

    Attributes:
        input_norm: [hidden_size]. Before attention.
        qkv_weight: [(num_heads + 2 * num_kv_heads) * head_dim, hidden_size]. Rows of Q, then K, then V.
        qkv_bias: [(num_heads + 2 * num_kv_heads) * head_dim], or None.
        q_norm: [head_dim], or None.
        k_norm: [head_dim], or None exactly where `q_norm` is.
        output_weight: [hidden_size, num_heads * head_dim].
        output_bias: [hidden_size], or None. Whole on every rank, added once.
        mlp_norm: [hidden_size]. Before the gated unit.
        gate_up_weight: [2 * intermediate_size, hidden_size]. Rows of the gate, then of the other factor. In a mixture of
            experts [num_experts, 2 * intermediate_size, hidden_size].
        down_weight: [hidden_size, intermediate_size]. In a mixture [num_experts, hidden_size, intermediate_size].
        router_weight: [num_experts, hidden_size] in a mixture of experts, None in a dense layer. Whole on every rank.
    """

    input_norm: Tensor
    qkv_weight: Tensor
    qkv_bias: Tensor | None = None
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    output_weight: Tensor
    output_bias: Tensor | None = None
    mlp_norm: Tensor
    gate_up_weight: Tensor
    down_weight: Tensor
    router_weight: Tensor | None = None


@frozen(eq=False, kw_only=True)
class ModelParams:
    """A decoder.

    Attributes:
        config: Sizes of the whole model, whatever the rank's share.
        embedding: [vocab_size, hidden_size].
        layers: num_layers of them.
        final_norm: [hidden_size].
        head: [vocab_size, hidden_size]. The same tensor as `embedding` where they are tied.
        rope: Rotary frequencies, on the weights' device.
    """

    config: ModelConfig
    embedding: Tensor
    layers: tuple[LayerParams, ...]
    final_norm: Tensor
    head: Tensor
    rope: Rope


@frozen
class LocalHeads:
    """How many heads one rank has.

    Attributes:
        num_heads: Query heads.
        num_kv_heads: Key and value heads.
    """

    num_heads: int
    num_kv_heads: int


def local_heads(config: ModelConfig, num_ranks: int) -> LocalHeads:
    """Divide the heads among tensor-parallel ranks.

    Raises:
        ConfigError: num_ranks does not divide the key/value heads, or an intermediate axis.
    """
    sizes = {"num_kv_heads": config.num_kv_heads, "intermediate_size": config.intermediate_size}
    if config.experts is not None:
        sizes["moe_intermediate_size"] = config.experts.intermediate_size
    for name, size in sizes.items():
        if size % num_ranks:
            raise ConfigError(
                f"tensor_parallel_size {num_ranks} does not divide the model's {name} {size}; choose a common divisor"
            )
    return LocalHeads(config.num_heads // num_ranks, config.num_kv_heads // num_ranks)
