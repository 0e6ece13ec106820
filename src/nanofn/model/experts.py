"""Mixture of experts: each token is computed by the few gated units that the router scores highest."""

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor

from nanofn.model.experts_config import ExpertsConfig
from nanofn.model.layers import swiglu


@frozen(eq=False)
class Routing:
    """Who computes which token.

    Attributes:
        expert_ids: [num_tokens, num_experts_per_token] int64. The best first.
        weights: [num_tokens, num_experts_per_token] the activations' dtype. Each expert's share in the sum.
    """

    expert_ids: Tensor
    weights: Tensor


def route(x: Tensor, router_weight: Tensor, experts: ExpertsConfig) -> Routing:
    """Choose each token's experts.

    Args:
        x: [num_tokens, hidden_size] any float dtype.
        router_weight: [num_experts, hidden_size] x's dtype.
        experts: How many are chosen, and whether their weights are scaled to a sum of 1.

    Returns:
        Scores are multiplied in x's dtype; softmax over all experts and the scaling are in fp32.

    Mutates:
        Nothing.

    Source:
        Shazeer et al. 2017, arXiv:1701.06538, section 2.1; the softmax before the choice is Qwen3's, arXiv:2505.09388.
    """
    shares = F.linear(x, router_weight).softmax(dim=-1, dtype=torch.float32)
    weights, expert_ids = shares.topk(experts.num_experts_per_token, dim=-1)
    if experts.has_normed_weights:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return Routing(expert_ids, weights.to(x.dtype))


def mix_experts(x: Tensor, routing: Routing, gate_up_weight: Tensor, down_weight: Tensor) -> Tensor:
    """Compute each token by its experts and add up their weighted results.

    Tokens are sorted by expert, so that each expert's weights are read once. Nothing is read back by the host: the
    groups' ends stay on the device, and no shape depends on the routing.

    Args:
        x: [num_tokens, hidden_size] any float dtype.
        routing: Of these tokens.
        gate_up_weight: [num_experts, 2 * intermediate_size, hidden_size] x's dtype. Rows of the gate, then the other factor.
        down_weight: [num_experts, hidden_size, intermediate_size] x's dtype.

    Returns:
        [num_tokens, hidden_size] x's dtype. Summed in the order of the experts' shares.

    Mutates:
        Nothing.

    Source:
        Gale et al. 2022, arXiv:2211.15841, section 4: products by group, no token dropped.
    """
    num_tokens, num_chosen = routing.expert_ids.shape
    sorted_ids, order = routing.expert_ids.flatten().sort(stable=True)
    every_expert = torch.arange(gate_up_weight.shape[0], device=x.device)
    ends = torch.searchsorted(sorted_ids, every_expert, right=True).to(torch.int32)
    grouped = x[order // num_chosen]
    inner = swiglu(F.grouped_mm(grouped, gate_up_weight.transpose(1, 2), offs=ends))
    results = F.grouped_mm(inner, down_weight.transpose(1, 2), offs=ends)
    # Back to token order: every place is written once, so the sum's order does not depend on the routing.
    by_token = torch.empty_like(results).index_copy_(0, order, results).view(num_tokens, num_chosen, x.shape[1])
    return torch.einsum("tkh,tk->th", by_token, routing.weights)
