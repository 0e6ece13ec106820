"""Log-probabilities of chosen tokens and of the likeliest ones."""

import torch
from torch import Tensor

from nanofn_kernels.chunk_sums import CHUNK, chunk_sums

MAX_ROWS = 64
"""Rows of logits that are held at once while a prompt is gone through: 39 MB in fp32 at a vocabulary of 152 k."""


def token_logprobs(logits: Tensor, token_ids: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the log-probabilities of one token per row, its rank, and the likeliest ids. Nothing is read back.

    Args:
        logits: [num_rows, vocab_size] any float dtype. The model's own: nothing adjusted, tempered or filtered.
        token_ids: [num_rows] int64.
        num_top: How many of the likeliest ids.

    Returns:
        logprob [num_rows] fp32, natural logarithms
        rank [num_rows] int64, from 1: one more than the number of ids with a larger logit
        top_ids [num_rows, num_top] int64, likeliest first
        top_logprobs [num_rows, num_top] fp32

    Mutates:
        Nothing.

    Source:
        The logarithm of softmax, with the definition of rank that vLLM documents.
    """
    peaks, mass, above = chunk_sums(logits, token_ids)
    peak = peaks.amax(dim=1, keepdim=True)
    log_mass = (mass * torch.exp(peaks - peak)).sum(dim=1, keepdim=True).log()
    top, top_ids = _largest(logits, peaks, num_top)
    chosen = torch.cat((logits.gather(1, token_ids.unsqueeze(1)).to(torch.float32), top), dim=1)
    logprobs = (chosen - peak) - log_mass
    return logprobs[:, 0], above.sum(dim=1) + 1, top_ids, logprobs[:, 1:]


def _largest(logits: Tensor, peaks: Tensor, num_top: int) -> tuple[Tensor, Tensor]:
    """The largest logits and their ids, largest first: looked for in as many chunks, those with the largest peaks."""
    vocab_size = logits.shape[1]
    if num_top >= peaks.shape[1]:
        values, ids = torch.topk(logits.to(torch.float32), num_top, dim=1)
        return values, ids
    chunks = torch.topk(peaks, num_top, dim=1).indices
    ids = (chunks.unsqueeze(2) * CHUNK + torch.arange(CHUNK, device=logits.device)).flatten(1)
    candidates = logits.gather(1, ids.clamp(max=vocab_size - 1)).to(torch.float32)
    # What is beyond the vocabulary comes after every id, those of -inf included.
    ranked = candidates.clamp(min=torch.finfo(torch.float32).min).masked_fill(ids >= vocab_size, -torch.inf)
    top = torch.topk(ranked, num_top, dim=1).indices
    return candidates.gather(1, top), ids.gather(1, top)
