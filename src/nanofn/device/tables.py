"""The device's tables by row: all that a step reads besides its upload, the weights and the K/V cache."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from attrs import frozen
from numpy.typing import NDArray
from torch import Tensor

from nanofn.batch.build import StepBatch
from nanofn.batch.row_start import RowStart
from nanofn.config import Limits, blocks_for
from nanofn.model.inputs import ModelInputs

_SIGN_BIT, _WORD = 1 << 63, 1 << 64


@frozen(eq=False)
class DeviceTables:
    """One row per running sequence, fixed from its start to its end or preemption.

    Every step, prefill or decode, reads its inputs at `tokens[row, position]`; a sampled token is written to
    `tokens[row, position + 1]`. So there is no "last token", and an output is an input before any host has seen it.

    Attributes:
        tokens: [max_num_seqs, max_model_len + 1] int64. Known and sampled ids.
        block_table: [max_num_seqs, max_blocks_per_seq] int32. Block ids in order.
        temperature: [max_num_seqs] fp32.
        seed: [max_num_seqs] int64.
        child: [max_num_seqs] int64.
        top_k: [max_num_seqs] int64.
        top_p: [max_num_seqs] fp32.
        min_p: [max_num_seqs] fp32.
    """

    tokens: Tensor
    block_table: Tensor
    temperature: Tensor
    seed: Tensor
    child: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor


def allocate_tables(limits: Limits, device: torch.device) -> DeviceTables:
    """Allocate tables that hold nothing yet."""
    num_rows = limits.max_num_seqs
    max_blocks = blocks_for(limits.max_model_len, limits.block_size)
    return DeviceTables(
        tokens=torch.zeros((num_rows, limits.max_model_len + 1), dtype=torch.int64, device=device),
        block_table=torch.zeros((num_rows, max_blocks), dtype=torch.int32, device=device),
        temperature=torch.zeros(num_rows, dtype=torch.float32, device=device),
        seed=torch.zeros(num_rows, dtype=torch.int64, device=device),
        child=torch.zeros(num_rows, dtype=torch.int64, device=device),
        top_k=torch.zeros(num_rows, dtype=torch.int64, device=device),
        top_p=torch.ones(num_rows, dtype=torch.float32, device=device),
        min_p=torch.zeros(num_rows, dtype=torch.float32, device=device),
    )


def send(array: NDArray[Any], device: torch.device) -> Tensor:
    """Copy an array to a device without waiting for what the device does: from pageable memory a copy would.

    numpy fills the pinned memory: `Tensor.pin_memory` hands more than 32,768 numbers to as many threads as there are cores,
    waits for the last of them, and leaves them spinning for milliseconds on the cores that grammars' masks are made on.
    """
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type != "cuda":
        return tensor.to(device)
    pinned = torch.empty_like(tensor, pin_memory=True)
    pinned.numpy()[...] = array
    return pinned.to(device, non_blocking=True)


def start_rows(tables: DeviceTables, starts: Sequence[RowStart]) -> None:
    """Set rows up for new owners, in a number of copies that does not depend on how many there are.

    Mutates:
        tables: those rows of everything but the block table, which the plan's new blocks fill.
    """
    device = tables.tokens.device
    lengths = np.array([len(start.token_ids) for start in starts])
    rows = np.array([start.row for start in starts])
    row_of = np.repeat(rows, lengths)
    position_of = np.arange(len(row_of)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    token_ids = np.fromiter(chain.from_iterable(start.token_ids for start in starts), np.int64, len(row_of))
    # As 64-bit patterns: a seed has 64 bits, a row and a position fewer.
    told = np.array(
        [
            (start.row, start.child, start.sampling.top_k, (start.seed + _SIGN_BIT) % _WORD - _SIGN_BIT)
            for start in starts
        ],
        dtype=np.int64,
    ).T
    shares = np.array(
        [(start.sampling.temperature, start.sampling.top_p, start.sampling.min_p) for start in starts], dtype=np.float32
    ).T
    at_row, at_position, ids = send(np.stack((row_of, position_of, token_ids)), device)
    tables.tokens[at_row, at_position] = ids
    row, child, top_k, seed = send(told, device)
    temperature, top_p, min_p = send(shares, device)
    for table, values in (
        (tables.child, child),
        (tables.top_k, top_k),
        (tables.seed, seed),
        (tables.temperature, temperature),
        (tables.top_p, top_p),
        (tables.min_p, min_p),
    ):
        table[row] = values


def extend_block_tables(tables: DeviceTables, new_blocks: np.ndarray) -> None:
    """Enter a plan's new blocks.

    Args:
        tables: The tables.
        new_blocks: [3, num_new_blocks] int32: row, index, block id.

    Mutates:
        tables: its block table.
    """
    if new_blocks.shape[1]:
        rows, indexes, block_ids = send(new_blocks, tables.tokens.device)
        tables.block_table[rows.long(), indexes.long()] = block_ids


def gather_inputs(tables: DeviceTables, batch: StepBatch, block_size: int) -> ModelInputs:
    """Work out a step's tokens, positions and slots from the tables.

    Args:
        tables: The tables, with the plan's new blocks entered.
        batch: The step.
        block_size: Tokens per block.

    Returns:
        The model's inputs, entry after entry.

    Mutates:
        Nothing.
    """
    rows, first_positions, counts = torch.from_numpy(batch.entries).to(tables.tokens.device, torch.int64)
    query_start_loc = torch.zeros(len(rows) + 1, dtype=torch.int64, device=rows.device)
    torch.cumsum(counts, 0, out=query_start_loc[1:])
    token_rows, positions = rows, first_positions
    if not batch.only_decodes:
        entry_of = torch.repeat_interleave(counts, output_size=batch.num_tokens)
        token_rows = rows[entry_of]
        steps = torch.arange(batch.num_tokens, device=rows.device)
        positions = first_positions[entry_of] + steps - query_start_loc[entry_of]
    block_ids = tables.block_table[token_rows, positions // block_size].to(torch.int64)
    return ModelInputs(
        token_ids=tables.tokens[token_rows, positions],
        positions=positions,
        slot_mapping=block_ids * block_size + positions % block_size,
        query_start_loc=query_start_loc,
        seq_lens=first_positions + counts,
        block_table=tables.block_table[rows, : blocks_for(batch.max_seq_len, block_size)],
        max_query_len=batch.max_query_len,
        max_seq_len=batch.max_seq_len,
    )
