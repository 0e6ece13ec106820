"""The sampler behind a step's logits: from entries and tables to tokens, on the device alone."""

import torch
from torch import Tensor

from nanofn.device.tables import DeviceTables
from nanofn_kernels.entries import sampling_inputs, store_tokens
from nanofn_kernels.sample import sample_into


def sample_entries(logits: Tensor, entries: Tensor, tables: DeviceTables, output: Tensor, filters: bool) -> None:
    """Sample a token for each entry that asks for one, and hand it on.

    Args:
        logits: [num_entries, vocab_size] any float dtype.
        entries: [5, num_entries] int32. See `nanofn_kernels.entries`.
        tables: How each row samples, and where its tokens are.
        output: [at least num_entries] int32.
        filters: Whether any row has top-k, top-p or min-p.

    Mutates:
        tables: tokens, at the position after each sampling entry's.
        output: the tokens; -1 where the logits had no best id.
    """
    count = entries.shape[1]
    temperature, seed, position, child, is_valid, *bounds = sampling_inputs(
        entries, tables.temperature, tables.seed, tables.child, tables.top_k, tables.top_p, tables.min_p
    )
    token_ids = torch.zeros(count, dtype=torch.int32, device=entries.device)
    is_undefined = torch.zeros(count, dtype=torch.bool, device=entries.device)
    top_k, top_p, min_p = bounds if filters else (None, None, None)
    sample_into(token_ids, is_undefined, logits, temperature, seed, position, child, is_valid, top_k, top_p, min_p)
    store_tokens(entries, token_ids, is_undefined, tables.tokens, output[:count])
