"""A step's entries on the device: what the model reads for them, how they sample, and where their tokens go."""

import torch
from torch import Tensor

from nanofn_kernels._dispatch import FLOATS, check_tensor, define_op, jit, next_power_of_2, tl
from nanofn_kernels.reference.entries import (
    CHUNK_FIELDS,
    ENTRY_FIELDS,
    decode_inputs as _decode_reference,
    prefill_inputs as _prefill_reference,
    sampling_inputs as _sampling_reference,
    store_tokens as _store_reference,
)

__all__ = ["CHUNK_FIELDS", "ENTRY_FIELDS", "decode_inputs", "prefill_inputs", "sampling_inputs", "store_tokens"]


@jit
def _decode_inputs_kernel(
    hidden_ptr, rows_ptr, positions_ptr, slots_ptr, seq_lens_ptr, entries_ptr, tokens_ptr, table_ptr, embedding_ptr, num_entries,
    hidden_size, tokens_stride, table_stride, embedding_stride, BLOCK_SIZE: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """hidden[e] = embedding[tokens[row, position]]; slot = table[row, position // size] * size + position % size.

    Program e does entry e. Traffic: 2 * element_bytes * hidden_size + 52 bytes an entry.
    """
    entry = tl.program_id(0)
    row = tl.load(entries_ptr + entry).to(tl.int64)
    position = tl.load(entries_ptr + num_entries + entry)
    index = tl.load(entries_ptr + 2 * num_entries + entry)
    block = tl.load(entries_ptr + 3 * num_entries + entry)
    is_real = row >= 0
    tl.store(table_ptr + row * table_stride + index, block, mask=is_real & (index >= 0))
    position = tl.where(is_real, position, 0)
    known = tl.load(
        table_ptr + row * table_stride + position // BLOCK_SIZE,
        mask=is_real & (index != position // BLOCK_SIZE),
        other=0,
    )
    mine = tl.where(index == position // BLOCK_SIZE, block, known).to(tl.int64)
    tl.store(rows_ptr + entry, row.to(tl.int32))
    tl.store(positions_ptr + entry, position)
    tl.store(slots_ptr + entry, tl.where(is_real, mine * BLOCK_SIZE + position % BLOCK_SIZE, -1))
    tl.store(seq_lens_ptr + entry, tl.where(is_real, position + 1, 0))
    token = tl.load(tokens_ptr + row * tokens_stride + position, mask=is_real, other=0).to(tl.int64)
    column = tl.arange(0, COLS)
    mask = column < hidden_size
    values = tl.load(embedding_ptr + token * embedding_stride + column, mask=mask & is_real, other=0.0)
    tl.store(hidden_ptr + entry.to(tl.int64) * hidden_size + column, values, mask=mask)


@jit
def _prefill_inputs_kernel(
    hidden_ptr, positions_ptr, slots_ptr, chunks_ptr, tokens_ptr, table_ptr, embedding_ptr, num_columns, hidden_size, tokens_stride,
    table_stride, embedding_stride, BLOCK_SIZE: tl.constexpr, COLUMNS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """position = seq_len - count + token - start of the chunk that owns the token; the rest as in `_decode_inputs_kernel`.

    Program t does token t. Traffic: 2 * element_bytes * hidden_size + 32 bytes a token, and 4 bytes a chunk from L2.
    """
    at = tl.program_id(0)
    column = tl.arange(0, COLUMNS)
    starts = tl.load(chunks_ptr + num_columns + column, mask=column < num_columns, other=1 << 30)
    num_tokens = tl.load(chunks_ptr + 2 * num_columns - 1)
    is_real = at < num_tokens
    # Empty chunks share their start with the one behind them, which therefore wins.
    chunk = tl.where(is_real, tl.sum((starts <= at).to(tl.int32)) - 1, 0)
    start = tl.load(chunks_ptr + num_columns + chunk)
    stop = tl.load(chunks_ptr + num_columns + chunk + 1)
    row = tl.load(chunks_ptr + chunk).to(tl.int64)
    seq_len = tl.load(chunks_ptr + 2 * num_columns + chunk)
    position = tl.where(is_real, seq_len - (stop - start) + at - start, 0)
    block = tl.load(table_ptr + row * table_stride + position // BLOCK_SIZE, mask=is_real, other=0).to(tl.int64)
    tl.store(positions_ptr + at, position)
    tl.store(slots_ptr + at, tl.where(is_real, block * BLOCK_SIZE + position % BLOCK_SIZE, -1))
    token = tl.load(tokens_ptr + row * tokens_stride + position, mask=is_real, other=0).to(tl.int64)
    cols = tl.arange(0, COLS)
    mask = cols < hidden_size
    values = tl.load(embedding_ptr + token * embedding_stride + cols, mask=mask & is_real, other=0.0)
    tl.store(hidden_ptr + at.to(tl.int64) * hidden_size + cols, values, mask=mask)


@jit
def _sampling_inputs_kernel(
    temperatures_ptr, seeds_ptr, positions_ptr, children_ptr, valid_ptr, top_ks_ptr, top_ps_ptr, min_ps_ptr, entries_ptr,
    temperature_ptr, seed_ptr, child_ptr, top_k_ptr, top_p_ptr, min_p_ptr, num_entries, BLOCK: tl.constexpr,
):  # fmt: skip
    """x[e] = table of x[row of e].

    Program p does BLOCK entries. Traffic: 100 bytes an entry.
    """
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = entry < num_entries
    row = tl.load(entries_ptr + entry, mask=mask, other=-1)
    is_real = row >= 0
    position = tl.load(entries_ptr + num_entries + entry, mask=mask, other=0)
    samples = tl.load(entries_ptr + 4 * num_entries + entry, mask=mask, other=0)
    tl.store(temperatures_ptr + entry, tl.load(temperature_ptr + row, mask=is_real, other=0.0), mask=mask)
    tl.store(seeds_ptr + entry, tl.load(seed_ptr + row, mask=is_real, other=0), mask=mask)
    tl.store(positions_ptr + entry, position + 1, mask=mask)
    tl.store(children_ptr + entry, tl.load(child_ptr + row, mask=is_real, other=0), mask=mask)
    tl.store(valid_ptr + entry, is_real & (samples > 0), mask=mask)
    tl.store(top_ks_ptr + entry, tl.load(top_k_ptr + row, mask=is_real, other=0), mask=mask)
    tl.store(top_ps_ptr + entry, tl.load(top_p_ptr + row, mask=is_real, other=1.0), mask=mask)
    tl.store(min_ps_ptr + entry, tl.load(min_p_ptr + row, mask=is_real, other=0.0), mask=mask)


@jit
def _store_tokens_kernel(
    output_ptr, tokens_ptr, entries_ptr, token_ids_ptr, undefined_ptr, num_entries, tokens_stride, BLOCK: tl.constexpr
):
    """tokens[row, position + 1] = output[e] = token_ids[e].

    Program p does BLOCK entries. Traffic: 29 bytes an entry.
    """
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = entry < num_entries
    row = tl.load(entries_ptr + entry, mask=mask, other=-1).to(tl.int64)
    position = tl.load(entries_ptr + num_entries + entry, mask=mask, other=0)
    samples = (row >= 0) & (tl.load(entries_ptr + 4 * num_entries + entry, mask=mask, other=0) > 0)
    token = tl.load(token_ids_ptr + entry, mask=mask, other=0)
    undefined = tl.load(undefined_ptr + entry, mask=mask, other=0) != 0
    tl.store(tokens_ptr + row * tokens_stride + position + 1, token.to(tokens_ptr.dtype.element_ty), mask=samples)
    tl.store(output_ptr + entry, tl.where(samples & undefined, -1, token), mask=mask)


ENTRIES_A_PROGRAM = 256


def _check_entries(entries: Tensor) -> int:
    check_tensor("entries", entries, (len(ENTRY_FIELDS), None), torch.int32, entries.device)
    return entries.shape[1]


def _check_decode(entries: Tensor, tokens: Tensor, block_table: Tensor, embedding: Tensor, block_size: int) -> None:
    del block_size
    _check_entries(entries)
    device = entries.device
    check_tensor("tokens", tokens, (None, None), torch.int64, device)
    check_tensor("block_table", block_table, (tokens.shape[0], None), torch.int32, device)
    check_tensor("embedding", embedding, (None, None), FLOATS, device)


def _new_decode(
    entries: Tensor, tokens: Tensor, block_table: Tensor, embedding: Tensor, block_size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    del tokens, block_table, block_size
    count = entries.shape[1]
    return (
        embedding.new_empty((count, embedding.shape[1])),
        entries.new_empty(count),
        entries.new_empty(count),
        entries.new_empty(count, dtype=torch.int64),
        entries.new_empty(count),
    )


@define_op(
    "decode_inputs", mutates=("block_table",), reference=_decode_reference, fake=_new_decode, check=_check_decode
)
def decode_inputs(
    entries: Tensor, tokens: Tensor, block_table: Tensor, embedding: Tensor, block_size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Enter new blocks, and look up what one token of each entry needs.

    Args:
        entries: [5, num_entries] int32, contiguous. See `ENTRY_FIELDS`. No row occurs twice with a new block.
        tokens: [num_rows, max_model_len + 1] int64. Ids by position.
        block_table: [num_rows, max_blocks_per_seq] int32. Block ids in order.
        embedding: [vocab_size, hidden_size] fp16, bf16 or fp32.
        block_size: Tokens a block.

    Returns:
        hidden [num_entries, hidden_size] as embedding: zeros for padding.
        rows [num_entries] int32: -1 for padding.
        positions [num_entries] int32: 0 for padding.
        slot_mapping [num_entries] int64: -1 for padding.
        seq_lens [num_entries] int32, the new token included: 0 for padding.

    Raises:
        ShapeError, DtypeError, StrideError: an argument does not fit.

    Mutates:
        block_table, at each entry's new block.

    Accuracy:
        Exact.

    Source:
        Ours.
    """
    count, hidden_size = entries.shape[1], embedding.shape[1]
    hidden, rows, positions, slots, seq_lens = _new_decode(entries, tokens, block_table, embedding, block_size)
    _decode_inputs_kernel[(count,)](
        hidden, rows, positions, slots, seq_lens, entries, tokens, block_table, embedding, count, hidden_size, tokens.stride(0),
        block_table.stride(0), embedding.stride(0), BLOCK_SIZE=block_size, COLS=next_power_of_2(hidden_size), num_warps=4,
    )  # fmt: skip
    return hidden, rows, positions, slots, seq_lens


def _check_prefill(
    chunks: Tensor, tokens: Tensor, block_table: Tensor, embedding: Tensor, block_size: int, num_tokens: int
) -> None:
    del block_size, num_tokens
    device = chunks.device
    check_tensor("chunks", chunks, (len(CHUNK_FIELDS), None), torch.int32, device)
    check_tensor("tokens", tokens, (None, None), torch.int64, device)
    check_tensor("block_table", block_table, (tokens.shape[0], None), torch.int32, device)
    check_tensor("embedding", embedding, (None, None), FLOATS, device)


def _new_prefill(
    chunks: Tensor, tokens: Tensor, block_table: Tensor, embedding: Tensor, block_size: int, num_tokens: int
) -> tuple[Tensor, Tensor, Tensor]:
    del tokens, block_table, block_size
    return (
        embedding.new_empty((num_tokens, embedding.shape[1])),
        chunks.new_empty(num_tokens),
        chunks.new_empty(num_tokens, dtype=torch.int64),
    )


@define_op("prefill_inputs", mutates=(), reference=_prefill_reference, fake=_new_prefill, check=_check_prefill)
def prefill_inputs(
    chunks: Tensor, tokens: Tensor, block_table: Tensor, embedding: Tensor, block_size: int, num_tokens: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Look up what every token of some chunks needs.

    Args:
        chunks: [3, num_chunks + 1] int32, contiguous. See `CHUNK_FIELDS`.
        tokens: [num_rows, max_model_len + 1] int64. Ids by position.
        block_table: [num_rows, max_blocks_per_seq] int32. Block ids in order, this step's included.
        embedding: [vocab_size, hidden_size] fp16, bf16 or fp32.
        block_size: Tokens a block.
        num_tokens: At least the chunks' tokens; those behind the last chunk are padding.

    Returns:
        hidden [num_tokens, hidden_size] as embedding: zeros for padding.
        positions [num_tokens] int32: 0 for padding.
        slot_mapping [num_tokens] int64: -1 for padding.

    Raises:
        ShapeError, DtypeError, StrideError: an argument does not fit.

    Mutates:
        Nothing.

    Accuracy:
        Exact.

    Source:
        Ours.
    """
    columns, hidden_size = chunks.shape[1], embedding.shape[1]
    hidden, positions, slots = _new_prefill(chunks, tokens, block_table, embedding, block_size, num_tokens)
    if num_tokens:
        _prefill_inputs_kernel[(num_tokens,)](
            hidden, positions, slots, chunks, tokens, block_table, embedding, columns, hidden_size, tokens.stride(0),
            block_table.stride(0), embedding.stride(0), BLOCK_SIZE=block_size, COLUMNS=next_power_of_2(columns),
            COLS=next_power_of_2(hidden_size), num_warps=4,
        )  # fmt: skip
    return hidden, positions, slots


def _check_sampling(
    entries: Tensor, temperature: Tensor, seed: Tensor, child: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor
) -> None:
    _check_entries(entries)
    for name, table, dtype in (
        ("temperature", temperature, torch.float32),
        ("seed", seed, torch.int64),
        ("child", child, torch.int64),
        ("top_k", top_k, torch.int64),
        ("top_p", top_p, torch.float32),
        ("min_p", min_p, torch.float32),
    ):
        check_tensor(name, table, (temperature.shape[0],), dtype, entries.device)


def _new_sampling(
    entries: Tensor, temperature: Tensor, seed: Tensor, child: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    count = entries.shape[1]
    temperatures, seeds, children, top_ks, top_ps, min_ps = (
        table.new_empty(count) for table in (temperature, seed, child, top_k, top_p, min_p)
    )
    is_valid = entries.new_empty(count, dtype=torch.bool)
    return temperatures, seeds, entries.new_empty(count), children, is_valid, top_ks, top_ps, min_ps


@define_op("sampling_inputs", mutates=(), reference=_sampling_reference, fake=_new_sampling, check=_check_sampling)
def sampling_inputs(
    entries: Tensor, temperature: Tensor, seed: Tensor, child: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Look up how each entry samples, as `sample_into` takes it.

    Args:
        entries: [5, num_entries] int32, contiguous. See `ENTRY_FIELDS`; position is that of the last token computed.
        temperature: [num_rows] fp32, by row like the others.
        seed: [num_rows] int64.
        child: [num_rows] int64.
        top_k: [num_rows] int64.
        top_p: [num_rows] fp32.
        min_p: [num_rows] fp32.

    Returns:
        temperature, seed, position (int32, of the token being sampled), child, is_valid (bool), top_k, top_p and min_p, each
        [num_entries]. Padding and entries that sample nothing are not valid.

    Raises:
        ShapeError, DtypeError, StrideError: an argument does not fit.

    Mutates:
        Nothing.

    Accuracy:
        Exact.

    Source:
        Ours.
    """
    count = entries.shape[1]
    new = _new_sampling(entries, temperature, seed, child, top_k, top_p, min_p)
    _sampling_inputs_kernel[(-(-count // ENTRIES_A_PROGRAM),)](
        *new, entries, temperature, seed, child, top_k, top_p, min_p, count, BLOCK=ENTRIES_A_PROGRAM, num_warps=4
    )
    return new


def _check_store(entries: Tensor, token_ids: Tensor, is_undefined: Tensor, tokens: Tensor, output: Tensor) -> None:
    count = _check_entries(entries)
    check_tensor("token_ids", token_ids, (count,), torch.int32, entries.device)
    check_tensor("is_undefined", is_undefined, (count,), torch.bool, entries.device)
    check_tensor("tokens", tokens, (None, None), torch.int64, entries.device)
    check_tensor("output", output, (count,), torch.int32, entries.device)


@define_op(
    "store_tokens",
    mutates=("tokens", "output"),
    reference=_store_reference,
    fake=lambda *_, **__: None,
    check=_check_store,
)
def store_tokens(entries: Tensor, token_ids: Tensor, is_undefined: Tensor, tokens: Tensor, output: Tensor) -> None:
    """Hand sampled tokens on: to the row's next position, and to the output.

    Args:
        entries: [5, num_entries] int32, contiguous. See `ENTRY_FIELDS`.
        token_ids: [num_entries] int32.
        is_undefined: [num_entries] bool. The logits had no best id: see `sample_into`.
        tokens: [num_rows, max_model_len + 1] int64.
        output: [num_entries] int32. The tokens; -1 where undefined. What entries that don't sample get means nothing.

    Returns:
        Nothing.

    Raises:
        ShapeError, DtypeError, StrideError: an argument does not fit.

    Mutates:
        tokens, at position + 1 of the rows that sample; output.

    Accuracy:
        Exact.

    Source:
        Ours.
    """
    count = entries.shape[1]
    _store_tokens_kernel[(-(-count // ENTRIES_A_PROGRAM),)](
        output, tokens, entries, token_ids, is_undefined, count, tokens.stride(0), BLOCK=ENTRIES_A_PROGRAM, num_warps=4
    )
