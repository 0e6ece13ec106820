"""Runs sequences through the decoder the way an engine does: step by step, over a paged cache full of NaN, where the weights are."""

from collections.abc import Sequence

import torch
from attrs import define, frozen
from torch import Tensor

from nanofn.model.decoder import compute_logits, forward
from nanofn.model.inputs import ModelInputs
from nanofn.model.kv_cache import KVCache, allocate_kv_cache
from nanofn.model.params import ModelParams


@frozen
class Entry:
    """Compute `num_tokens` more tokens of a sequence in this step."""

    sequence: int
    num_tokens: int


@define(eq=False)
class Paging:
    """Sequences, their blocks in shuffled order, and how far each is computed."""

    params: ModelParams
    sequences: list[list[int]]
    block_size: int
    kv_cache: KVCache
    block_table: Tensor
    num_computed: list[int]
    first_position: int = 0

    def inputs(self, entries: Sequence[Entry], *, num_padding: int = 0, owns_token: bool = False) -> ModelInputs:
        """Lay out a step; padding entries come last, with length 0, slot -1 and no blocks.

        As many padding tokens follow: owned by the padding entries, as where all entries are decodes, or by none.
        """
        token_ids, positions, slots, counts, lens = [], [], [], [], []
        for entry in entries:
            start = self.num_computed[entry.sequence]
            tokens = self.sequences[entry.sequence][start : start + entry.num_tokens]
            assert len(tokens) == entry.num_tokens
            places = torch.arange(start, start + entry.num_tokens)
            blocks = self.block_table[entry.sequence, places // self.block_size].to(torch.int64)
            token_ids.append(torch.tensor(tokens))
            positions.append(places + self.first_position)
            slots.append(blocks * self.block_size + places % self.block_size)
            counts.append(entry.num_tokens)
            lens.append(start + entry.num_tokens)
        token_ids.append(torch.zeros(num_padding, dtype=torch.int64))
        positions.append(torch.zeros(num_padding, dtype=torch.int64))
        slots.append(torch.full((num_padding,), -1))
        tables = [self.block_table[[entry.sequence for entry in entries]]]
        tables.append(torch.full((num_padding, self.block_table.shape[1]), -1, dtype=torch.int32))
        offsets = torch.tensor([0, *counts]).cumsum(0)
        starts = torch.cat((offsets, offsets[-1] + torch.arange(1, num_padding + 1) * owns_token))
        device = self.params.embedding.device
        return ModelInputs(
            token_ids=torch.cat(token_ids).to(device),
            positions=torch.cat(positions).to(device),
            slot_mapping=torch.cat(slots).to(device),
            query_start_loc=starts.to(device),
            seq_lens=torch.tensor([*lens, *[0] * num_padding], device=device),
            block_table=torch.cat(tables).to(device),
            max_query_len=max(counts, default=0),
            max_seq_len=max(lens, default=0),
        )

    @torch.inference_mode()
    def step(self, entries: Sequence[Entry], *, num_padding: int = 0, owns_token: bool = False) -> list[Tensor]:
        """Run a step; returns each entry's logits at all of its tokens."""
        inputs = self.inputs(entries, num_padding=num_padding, owns_token=owns_token)
        logits = compute_logits(self.params, forward(self.params, inputs, self.kv_cache))
        for entry in entries:
            self.num_computed[entry.sequence] += entry.num_tokens
        return list(logits[: len(logits) - num_padding].split([entry.num_tokens for entry in entries]))


def start_paging(
    params: ModelParams, sequences: list[list[int]], block_size: int, *, seed: int = 0, fill: float = float("nan")
) -> Paging:
    """Give every sequence its blocks, scattered over a pool with blocks to spare, all slots filled."""
    needed = [-(-len(sequence) // block_size) for sequence in sequences]
    num_blocks = sum(needed) + 3
    weights = params.embedding
    kv_cache = allocate_kv_cache(params.config, num_blocks, block_size, dtype=weights.dtype, device=weights.device)
    for tensor in (*kv_cache.k, *kv_cache.v):
        tensor.fill_(fill)
    shuffled = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(seed)).to(torch.int32)
    table = torch.full((len(sequences), max(needed)), -1, dtype=torch.int32)
    start = 0
    for row, count in enumerate(needed):
        table[row, :count] = shuffled[start : start + count]
        start += count
    return Paging(params, sequences, block_size, kv_cache, table, [0] * len(sequences))


def run_to_end(paging: Paging, steps: Sequence[Sequence[Entry]]) -> list[Tensor]:
    """Run all steps; returns each sequence's logits in order of position."""
    found: list[list[Tensor]] = [[] for _ in paging.sequences]
    for entries in steps:
        for entry, logits in zip(entries, paging.step(entries), strict=True):
            found[entry.sequence].append(logits)
    return [torch.cat(pieces) for pieces in found]


def relative_error(found: Tensor, expected: Tensor) -> float:
    """The largest difference, as a share of the largest expected magnitude."""
    return ((found - expected).abs().max() / expected.abs().max()).item()
