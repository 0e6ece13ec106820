"""From tables and a batch to what a step of chunks reads, in few shapes."""

import torch
import torch.nn.functional as F
from torch import Tensor

from nanofn.batch.build import StepBatch
from nanofn.config import Limits
from nanofn.device.tables import DeviceTables, gather_inputs
from nanofn.model.prefill import PrefillStep

TOKEN_UNIT = 16
"""Tokens are padded to a multiple of this: rows of products stay aligned, and a compiled function sees no size of 1."""

FEW_CHUNKS = 31
"""Chunks are padded to this number or to the most there can be: `paged_prefill` is compiled for two sizes, not for each."""


def prefill_step(tables: DeviceTables, batch: StepBatch, cos_sin: Tensor, limits: Limits) -> PrefillStep:
    """Look up a step's tokens, positions and slots.

    Args:
        tables: The tables, with the plan's new blocks entered.
        batch: The step.
        cos_sin: [max_position, head_dim] fp32.
        limits: The bounds.

    Returns:
        The step, padded.

    Mutates:
        Nothing.
    """
    inputs = gather_inputs(tables, batch, limits.block_size)
    num_tokens, num_chunks = batch.num_tokens, batch.entries.shape[1]
    more_tokens = -num_tokens % TOKEN_UNIT
    more_chunks = (FEW_CHUNKS if num_chunks <= FEW_CHUNKS else limits.max_num_seqs) - num_chunks
    rows = torch.from_numpy(batch.entries[0]).to(inputs.token_ids.device)
    query_start_loc = F.pad(inputs.query_start_loc.to(torch.int32), (0, more_chunks), value=num_tokens)
    return PrefillStep(
        token_ids=F.pad(inputs.token_ids, (0, more_tokens)),
        positions=F.pad(inputs.positions.to(torch.int32), (0, more_tokens)),
        slot_mapping=F.pad(inputs.slot_mapping, (0, more_tokens), value=-1),
        rows=F.pad(rows, (0, more_chunks), value=-1),
        query_start_loc=query_start_loc,
        seq_lens=F.pad(inputs.seq_lens.to(torch.int32), (0, more_chunks)),
        block_table=tables.block_table,
        cos_sin=cos_sin,
    )
