"""Which layers are mixtures of experts, and of how many, as `config.json` says it."""

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from nanofn.errors import CheckpointError, UnsupportedModelError
from nanofn.model.config_values import count, flag

WIDTH_MULTIPLE = 8
"""torch's grouped products want rows of whole 16 bytes; this is that in 16-bit types."""


@frozen(kw_only=True)
class ExpertsConfig:
    """A mixture of experts in place of some layers' gated unit.

    Attributes:
        num_experts: Gated units of such a layer.
        num_experts_per_token: How many of them compute each token.
        intermediate_size: Width of each.
        has_normed_weights: The chosen experts' weights are scaled to a sum of 1.
        sparse_step: Every so many-th layer is a mixture, the last of each such group.
        dense_layers: Indexes of layers that are none all the same.
    """

    num_experts: int
    num_experts_per_token: int
    intermediate_size: int
    has_normed_weights: bool
    sparse_step: int = 1
    dense_layers: frozenset[int] = frozenset()

    def is_in(self, layer: int) -> bool:
        """Whether a layer, counted from 0, is a mixture."""
        return layer not in self.dense_layers and (layer + 1) % self.sparse_step == 0

    def num_mixtures(self, num_layers: int) -> int:
        """Count the mixtures among so many layers, without going through them."""
        dense = (layer for layer in self.dense_layers if 0 <= layer < num_layers)
        return num_layers // self.sparse_step - sum((layer + 1) % self.sparse_step == 0 for layer in dense)


def read_experts(config_json: Mapping[str, Any]) -> ExpertsConfig:
    """Read a mixture as Qwen3-MoE describes it.

    Raises:
        UnsupportedModelError: A width is no multiple of `WIDTH_MULTIPLE`.
        CheckpointError: A number is missing or out of range.
    """
    # transformers 5 writes num_local_experts.
    name = "num_experts" if config_json.get("num_experts") is not None else "num_local_experts"
    num_experts = count(config_json, name)
    per_token = count(config_json, "num_experts_per_tok")
    if per_token > num_experts:
        raise CheckpointError(
            f"config.json has num_experts_per_tok {per_token} and {name} {num_experts}; it must not be above it"
        )
    inner = count(config_json, "moe_intermediate_size")
    for key, size in (("hidden_size", count(config_json, "hidden_size")), ("moe_intermediate_size", inner)):
        if size % WIDTH_MULTIPLE:
            raise UnsupportedModelError(f"{key} {size} of a mixture is not supported; it must be a multiple of 8")
    dense_layers = config_json.get("mlp_only_layers") or []
    if not isinstance(dense_layers, list) or any(type(layer) is not int for layer in dense_layers):
        raise CheckpointError(f"config.json has mlp_only_layers {dense_layers!r}; it must be a list of layer indexes")
    return ExpertsConfig(
        num_experts=num_experts,
        num_experts_per_token=per_token,
        intermediate_size=inner,
        has_normed_weights=flag(config_json, "norm_topk_prob", False),
        sparse_step=count(config_json, "decoder_sparse_step", 1),
        dense_layers=frozenset(dense_layers),
    )
