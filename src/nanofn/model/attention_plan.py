"""How one step's attention is cut into few large operations: made once a step on the host, used by every layer.

Rows (tokens) are reordered so that every piece is a slice: first the single-token entries, sorted by length and cut
into groups of similar length, then the longer chunks. Padding entries fall away.
"""

import torch
from attrs import frozen
from torch import Tensor

from nanofn.model.inputs import ModelInputs

MAX_GROUP_ROWS = 32
"""Most decode entries in a group."""

MAX_GROUP_SLOTS = 8192
"""Most slots that a group gathers, unless one entry alone is longer: K and V of a group should stay in cache."""


@frozen(eq=False)
class DecodeGroup:
    """Single-token entries whose keys are gathered to one padded length.

    Attributes:
        first_row: Where its rows begin.
        num_rows: Entries, one row each.
        key_slots: [num_rows * num_kv_heads * length] int64, slot * num_kv_heads + head, so that a head's keys lie
            together. Beyond an entry's own length its first slot is repeated, which is written.
        value_slots: [num_rows * num_heads, length] int64. The same, once per query head.
        mask: [num_rows * num_kv_heads, 1, length] fp32. 0 to attend, -inf beyond the entry's length.
    """

    first_row: int
    num_rows: int
    key_slots: Tensor
    value_slots: Tensor
    mask: Tensor


@frozen(eq=False)
class Chunk:
    """Consecutive tokens of one sequence.

    Attributes:
        first_row: Where its rows begin.
        num_rows: Tokens.
        slots: [seq_len] int64, of every token up to the chunk's last; None where the chunk starts the sequence.
    """

    first_row: int
    num_rows: int
    slots: Tensor | None


@frozen(eq=False)
class AttentionPlan:
    """One step's attention.

    Attributes:
        order: [num_rows] int64, the token of each row; None where rows are the tokens in order.
        written_rows: [num_written] int64, rows with a slot; None where all have one.
        written_slots: [num_written] int64.
        decode_groups: In row order.
        chunks: In row order, after the groups.
        scratch: [num_gathered, head_dim] the cache's dtype. Room for the largest group's keys: every layer fills it
            anew, since fresh pages for each gather cost more than the copy.
    """

    order: Tensor | None
    written_rows: Tensor | None
    written_slots: Tensor
    decode_groups: tuple[DecodeGroup, ...]
    chunks: tuple[Chunk, ...]
    scratch: Tensor


@frozen
class _Entry:
    index: int
    first_token: int
    num_tokens: int
    seq_len: int


def plan_attention(inputs: ModelInputs, cache: Tensor, num_heads: int) -> AttentionPlan:
    """Cut a step's attention into groups and chunks.

    Reads the two length vectors back, so on a GPU it waits for the device once a step: this plain path is the
    reference there, not the fast one.

    Args:
        inputs: The step.
        cache: [num_blocks, block_size, num_kv_heads, head_dim]. Any layer's; only its shape and dtype count.
        num_heads: Query heads.

    Returns:
        The plan, on the inputs' device.

    Mutates:
        Nothing.

    Source:
        Ours. Paging: Kwon et al. 2023, arXiv:2309.06180, section 4.1.
    """
    starts, seq_lens = inputs.query_start_loc.tolist(), inputs.seq_lens.tolist()
    entries = [
        _Entry(index, starts[index], starts[index + 1] - starts[index], seq_len)
        for index, seq_len in enumerate(seq_lens)
        if seq_len > 0 and starts[index + 1] > starts[index]
    ]
    decodes = sorted((entry for entry in entries if entry.num_tokens == 1), key=lambda entry: entry.seq_len)
    long_entries = [entry for entry in entries if entry.num_tokens > 1]
    order = _order(decodes + long_entries, inputs.token_ids)
    slots = inputs.slot_mapping if order is None else inputs.slot_mapping[order]
    written_rows = (slots >= 0).nonzero().squeeze(1) if bool((slots < 0).any()) else None
    base = inputs.block_table.to(torch.int64) * cache.shape[1]
    groups, row = [], 0
    for group in _groups(decodes):
        groups.append(_decode_group(row, group, base, cache, num_heads))
        row += len(group)
    chunks = []
    for entry in long_entries:
        chunks.append(_chunk(row, entry, base, cache.shape[1]))
        row += entry.num_tokens
    return AttentionPlan(
        order=order,
        written_rows=written_rows,
        written_slots=slots if written_rows is None else slots[written_rows],
        decode_groups=tuple(groups),
        chunks=tuple(chunks),
        scratch=cache.new_empty(max((group.key_slots.shape[0] for group in groups), default=0), cache.shape[3]),
    )


def _order(entries: list[_Entry], token_ids: Tensor) -> Tensor | None:
    order: list[int] = []
    for entry in entries:
        order.extend(range(entry.first_token, entry.first_token + entry.num_tokens))
    if order == list(range(token_ids.shape[0])):
        return None
    return torch.tensor(order, dtype=torch.int64, device=token_ids.device)


def _groups(decodes: list[_Entry]) -> list[list[_Entry]]:
    """Cut entries that rise in length so that a group is small and little of it is padding."""
    groups: list[list[_Entry]] = []
    for entry in decodes:
        group = groups[-1] if groups else []
        if group and len(group) < MAX_GROUP_ROWS and (len(group) + 1) * entry.seq_len <= MAX_GROUP_SLOTS:
            group.append(entry)
        else:
            groups.append([entry])
    return groups


def _slots(base: Tensor, length: int, block_size: int) -> Tensor:
    """Spell out the first `length` slots of each row of block starts: [num_rows, length] int64."""
    num_blocks = -(-length // block_size)
    offsets = torch.arange(block_size, device=base.device)
    return (base[:, :num_blocks].unsqueeze(2) + offsets).flatten(1)[:, :length]


def _decode_group(first_row: int, group: list[_Entry], base: Tensor, cache: Tensor, num_heads: int) -> DecodeGroup:
    _, block_size, num_kv_heads, _ = cache.shape
    length, device = group[-1].seq_len, base.device
    slots = _slots(base[torch.tensor([entry.index for entry in group], device=device)], length, block_size)
    lens = torch.tensor([[entry.seq_len] for entry in group], device=device)
    is_beyond = torch.arange(length, device=device) >= lens
    # Repeating a written slot, rather than masking what was gathered, keeps NaN from unwritten slots out of K and V.
    slots = torch.where(is_beyond, slots[:, :1], slots).mul_(num_kv_heads)
    key_slots = (slots.unsqueeze(1) + torch.arange(num_kv_heads, device=device).unsqueeze(1)).flatten(0, 1)
    mask = torch.zeros(is_beyond.shape, dtype=torch.float32, device=device).masked_fill_(is_beyond, -torch.inf)
    mask = mask.repeat_interleave(num_kv_heads, dim=0).unsqueeze(1)
    return DecodeGroup(
        first_row=first_row,
        num_rows=len(group),
        key_slots=key_slots.flatten(),
        value_slots=key_slots.repeat_interleave(num_heads // num_kv_heads, dim=0),
        mask=mask,
    )


def _chunk(first_row: int, entry: _Entry, base: Tensor, block_size: int) -> Chunk:
    if entry.seq_len == entry.num_tokens:
        return Chunk(first_row, entry.num_tokens, None)
    slots = _slots(base[entry.index : entry.index + 1], entry.seq_len, block_size)
    return Chunk(first_row, entry.num_tokens, slots.squeeze(0))
