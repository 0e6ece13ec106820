"""A step's entries on the device, in plain torch: see `nanofn_kernels.entries`."""

import torch
from torch import Tensor

ENTRY_FIELDS = ("row", "position", "block_index", "block_id", "samples")
"""What the rows of an array of entries are. Row -1 is padding; block_index -1 means no new block."""


def decode_inputs(
    entries: Tensor, tokens: Tensor, block_table: Tensor, embedding: Tensor, block_size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Look up what one token of each entry needs: see `nanofn_kernels.entries`."""
    row, position, block_index, block_id, _ = entries.to(torch.int64)
    is_real = row >= 0
    grows = is_real & (block_index >= 0)
    block_table[row[grows], block_index[grows]] = block_id[grows].to(torch.int32)
    at, row = torch.where(is_real, position, 0), row.clamp(min=0)
    slots = block_table[row, at // block_size].to(torch.int64) * block_size + at % block_size
    hidden = embedding[tokens[row, at]].masked_fill_(~is_real.unsqueeze(1), 0)
    return (
        hidden,
        entries[0].clone(),
        at.to(torch.int32),
        torch.where(is_real, slots, -1),
        torch.where(is_real, at + 1, 0).to(torch.int32),
    )


CHUNK_FIELDS = ("row", "start", "seq_len")
"""What the rows of an array of chunks are. `start` is the number of tokens in front of the chunk. Padding has row -1, seq_len 0
and the number of all tokens as its start; the last column is padding always."""


def prefill_inputs(
    chunks: Tensor, tokens: Tensor, block_table: Tensor, embedding: Tensor, block_size: int, num_tokens: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Look up what every token of some chunks needs: see `nanofn_kernels.entries`."""
    row, start, seq_len = chunks.to(torch.int64)
    at = torch.arange(num_tokens, device=chunks.device)
    chunk = torch.searchsorted(start, at, right=True) - 1
    is_real = at < start[-1]
    chunk = torch.where(is_real, chunk, 0)
    count = start.diff(append=start[-1:])
    position = torch.where(is_real, seq_len[chunk] - count[chunk] + at - start[chunk], 0)
    row = row[chunk].clamp(min=0)
    slots = block_table[row, position // block_size].to(torch.int64) * block_size + position % block_size
    hidden = embedding[tokens[row, position]].masked_fill_(~is_real.unsqueeze(1), 0)
    return hidden, position.to(torch.int32), torch.where(is_real, slots, -1)


def sampling_inputs(
    entries: Tensor, temperature: Tensor, seed: Tensor, child: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Look up how each entry samples: see `nanofn_kernels.entries`."""
    row = entries[0].to(torch.int64).clamp(min=0)
    looked_up = [table[row] for table in (temperature, seed, child, top_k, top_p, min_p)]
    temperatures, seeds, children, top_ks, top_ps, min_ps = looked_up
    is_valid = (entries[0] >= 0) & (entries[4] > 0)
    return temperatures, seeds, entries[1] + 1, children, is_valid, top_ks, top_ps, min_ps


def store_tokens(entries: Tensor, token_ids: Tensor, is_undefined: Tensor, tokens: Tensor, output: Tensor) -> None:
    """Hand sampled tokens on: see `nanofn_kernels.entries`."""
    samples = (entries[0] >= 0) & (entries[4] > 0)
    row, position = entries[0][samples].to(torch.int64), entries[1][samples].to(torch.int64)
    tokens[row, position + 1] = token_ids[samples].to(torch.int64)
    output[: len(token_ids)] = torch.where(samples & is_undefined, -1, token_ids)
