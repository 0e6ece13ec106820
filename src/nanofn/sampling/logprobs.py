"""Log-probabilities of chosen tokens and of the likeliest ones."""

import torch
from torch import Tensor

MAX_ROWS = 64
"""Rows of logits that are held at once in fp32 while a prompt is gone through: 39 MB at a vocabulary of 152 k."""


def token_logprobs(logits: Tensor, token_ids: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the log-probabilities of one token per row, its rank, and the likeliest ids.

    Args:
        logits: [num_rows, vocab_size] fp32. The model's own: nothing adjusted, tempered or filtered.
        token_ids: [num_rows] int64.
        num_top: How many of the likeliest ids.

    Returns:
        logprob [num_rows] fp32, natural logarithms
        rank [num_rows] int64, from 1: one more than the number of strictly likelier ids
        top_ids [num_rows, num_top] int64, likeliest first
        top_logprobs [num_rows, num_top] fp32

    Mutates:
        Nothing.

    Source:
        The logarithm of softmax, with the definition of rank that vLLM documents.
    """
    logprobs = torch.log_softmax(logits.to(torch.float32), dim=1)
    chosen = logprobs.gather(1, token_ids.unsqueeze(1))
    rank = (logprobs > chosen).sum(dim=1) + 1
    top = torch.topk(logprobs, num_top, dim=1)
    return chosen.squeeze(1), rank, top.indices, top.values
