"""What log-probabilities need of a vocabulary, chunk by chunk, in plain torch: see `nanofn_kernels.chunk_sums`."""

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK = 256
"""Ids of a chunk."""


def chunk_sums(logits: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Look at every id once: see `nanofn_kernels.chunk_sums`."""
    x = logits.to(torch.float32)
    chosen = x.gather(1, token_ids.unsqueeze(1)).unsqueeze(2)
    chunks = F.pad(x, (0, -x.shape[1] % CHUNK), value=-torch.inf).unflatten(1, (-1, CHUNK))
    peaks = chunks.amax(dim=2)
    mass = torch.exp(chunks - peaks.clamp(min=torch.finfo(torch.float32).min).unsqueeze(2)).sum(dim=2)
    return peaks, mass, (chunks > chosen).sum(dim=2, dtype=torch.int32)
