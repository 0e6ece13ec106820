"""The least time that a model's steps can take on a device with measured ceilings.

Three parts of a step run one after another: the linears, attention, the head. Each takes as long as its operations at the
rate of a matrix product, or as its bytes at the rate of a read, whichever is longer. Bytes are the fewest: each weight once
a step, the K/V of each sequence once and its new K/V once more. Activations stay on the chip, launches cost nothing.

A prefix that sequences share counts for each of them: this bounds kernels that read every sequence by itself.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from attrs import field, frozen


@frozen
class Ceilings:
    """What a device was measured to do.

    Attributes:
        bytes_per_s: Read from memory.
        operations_per_s: Of a large matrix product; a multiplication and an addition are two.
    """

    bytes_per_s: float
    operations_per_s: float


@frozen
class Entry:
    """A sequence's part in a step.

    Attributes:
        first_position: Tokens before it, whose K/V are read.
        num_tokens: Tokens that are computed.
        samples: Whether the head is computed for the last of them.
    """

    first_position: int
    num_tokens: int
    samples: bool


@frozen(kw_only=True)
class Dimensions:
    """A decoder's sizes.

    Attributes:
        intermediate_size: Width of the gated unit, of one expert where there are experts.
        num_experts: 0 for a dense model.
        num_experts_per_token: 0 for a dense model.
        weight_bytes: Of one weight.
        kv_bytes: Of one element of K or V.
        experts_hit: Number of tokens in a step to how many experts of a layer such a step was measured to choose.
    """

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    num_experts: int = 0
    num_experts_per_token: int = 0
    weight_bytes: int = 2
    kv_bytes: int = 2
    experts_hit: Mapping[int, float] = field(factory=dict)

    @property
    def attention_weights(self) -> int:
        """Weights of a layer that every token passes: Q, K, V and output projections, and the router of experts."""
        projections = 2 * (self.num_heads + self.num_kv_heads) * self.head_dim * self.hidden_size
        return projections + self.num_experts * self.hidden_size

    @property
    def unit_weights(self) -> int:
        """Weights of a layer's gated unit, or of one of its experts."""
        return 3 * self.hidden_size * self.intermediate_size

    @property
    def head_weights(self) -> int:
        """Weights of the head, tied or not."""
        return self.vocab_size * self.hidden_size

    @property
    def kv_bytes_per_token(self) -> int:
        """What one token keeps in the cache."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.kv_bytes

    def linear_weights_per_token(self) -> int:
        """Weights of all layers that one token is multiplied with."""
        return self.num_layers * (self.attention_weights + max(1, self.num_experts_per_token) * self.unit_weights)

    def units_read(self, num_tokens: int) -> float:
        """Gated units of a layer that a step reads: of experts those measured, or else as many as if each were as likely."""
        if not self.num_experts:
            return 1.0
        missed = (1 - self.num_experts_per_token / self.num_experts) ** num_tokens
        return self.experts_hit.get(num_tokens, self.num_experts * (1 - missed))

    def linear_weights_read(self, num_tokens: int) -> float:
        """Weights of all layers that a step reads."""
        return self.num_layers * (self.attention_weights + self.units_read(num_tokens) * self.unit_weights)


def dimensions_of(config_json: Mapping[str, Any]) -> Dimensions:
    """Read a parsed `config.json` of the Qwen3 kinds, in a dtype of two bytes or in float32."""
    width = 4 if config_json.get("dtype") == "float32" else 2
    num_experts = config_json.get("num_experts", 0)
    return Dimensions(
        num_layers=config_json["num_hidden_layers"],
        hidden_size=config_json["hidden_size"],
        num_heads=config_json["num_attention_heads"],
        num_kv_heads=config_json["num_key_value_heads"],
        head_dim=config_json["head_dim"],
        intermediate_size=config_json["moe_intermediate_size" if num_experts else "intermediate_size"],
        vocab_size=config_json["vocab_size"],
        num_experts=num_experts,
        num_experts_per_token=config_json["num_experts_per_tok"] if num_experts else 0,
        weight_bytes=width,
        kv_bytes=width,
    )


def step_work(dimensions: Dimensions, entries: Iterable[Entry]) -> dict[str, tuple[float, float]]:
    """Count what a step cannot avoid: part to (operations, bytes)."""
    num_tokens = num_pairs = num_read = num_sampled = 0
    for entry in entries:
        new = entry.num_tokens
        num_tokens += new
        num_pairs += new * entry.first_position + new * (new + 1) // 2  # causal
        num_read += entry.first_position
        num_sampled += entry.samples
    heads = dimensions.num_layers * dimensions.num_heads * dimensions.head_dim
    work = {
        "linears": (
            2.0 * dimensions.linear_weights_per_token() * num_tokens,
            dimensions.linear_weights_read(num_tokens) * dimensions.weight_bytes,
        ),
        "attention": (4.0 * heads * num_pairs, float((num_read + num_tokens) * dimensions.kv_bytes_per_token)),
    }
    if num_sampled:
        head = dimensions.head_weights
        work["head"] = 2.0 * head * num_sampled, float(head * dimensions.weight_bytes)
    return work


def step_seconds(dimensions: Dimensions, ceilings: Ceilings, entries: Iterable[Entry]) -> float:
    """The least time of one step."""
    return sum(
        max(operations / ceilings.operations_per_s, num_bytes / ceilings.bytes_per_s)
        for operations, num_bytes in step_work(dimensions, entries).values()
    )


def least_seconds(dimensions: Dimensions, ceilings: Ceilings, steps: Iterable[Iterable[Entry]]) -> float:
    """The least time of steps one after another."""
    return sum(step_seconds(dimensions, ceilings, entries) for entries in steps)
