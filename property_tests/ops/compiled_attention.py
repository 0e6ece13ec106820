"""What a GPU would run of attention and its neighbours, compiled without one: one JSON line a kernel.

Run in a process of its own, without TRITON_INTERPRET.
"""

import json
from collections.abc import Callable

import torch

from nanofn_kernels import entries as entries_ops
from nanofn_kernels.entries import CHUNK_FIELDS, ENTRY_FIELDS
from nanofn_kernels.norm_rope_store import launch_norm_rope_store
from nanofn_kernels.paged_decode import decode_split_size, launch_paged_decode, scratch_size
from nanofn_kernels.paged_prefill import launch_paged_prefill
from nanofn_kernels.work_list import NO_SPLIT, max_item_blocks, max_items, work_list
from ops import offline

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
MAX_SEQ_LEN = 4096


def integers(*size: int) -> torch.Tensor:
    """An int32 tensor of this size; only its type, strides and alignment matter."""
    return torch.zeros(size, dtype=torch.int32)


def decode(batch: int, group: int = 2, head_dim: int = 128, block_size: int = 64, dtype: torch.dtype = BF16, *, split: int = 0, pdl: bool = False) -> None:  # fmt: skip
    """A decode of 8 K/V heads, as the rule or a constant split has it."""
    size = split or decode_split_size(batch, 8)
    number = max_items(batch, MAX_SEQ_LEN, size, 8)
    blocks = integers(number, max_item_blocks(MAX_SEQ_LEN, size, block_size, 8))
    cache = torch.zeros((4, block_size, 8, head_dim), dtype=dtype)
    query = torch.zeros((batch, 8 * group, head_dim), dtype=dtype)
    scratch = torch.zeros(scratch_size(number, 8 * group, head_dim))
    launch_paged_decode(
        query, cache, cache, MAX_SEQ_LEN // block_size, integers(number, 8), blocks, integers(1), scratch, integers(batch * 8), 0.1,
        split, launch_pdl=pdl,
    )  # fmt: skip


def prefill(group: int = 2, head_dim: int = 128, block_size: int = 64, dtype: torch.dtype = BF16) -> None:
    """Four chunks of 8 K/V heads."""
    cache = torch.zeros((4, block_size, 8, head_dim), dtype=dtype)
    query = torch.zeros((4096, 8 * group, head_dim), dtype=dtype)
    launch_paged_prefill(
        query, cache, cache, integers(4, MAX_SEQ_LEN // block_size), integers(4), integers(5), integers(4), 0.1
    )


def store(head_dim: int = 128, *, pdl: bool = False) -> None:
    """Eight tokens of 16 heads and 8 K/V heads."""
    cache = torch.zeros((4, 64, 8, head_dim), dtype=BF16)
    weight = torch.zeros(head_dim, dtype=BF16)
    qkv, table = torch.zeros((8, 32 * head_dim), dtype=BF16), torch.zeros((64, head_dim))
    slots = torch.zeros(8, dtype=torch.int64)
    launch_norm_rope_store(qkv, weight, weight, table, integers(8), slots, cache, cache, 16, 1e-6, launch_pdl=pdl)


def work() -> None:
    """The work list of 256 entries."""
    items, blocks = integers(256, 8), integers(256, 64)
    launch = work_list._init_fn  # the launching function itself: on a CPU the op would run its reference
    launch.__wrapped__(integers(256, 64), integers(256), integers(256), NO_SPLIT, 64, 8, items, blocks, integers(1))


def entries(name: str) -> None:
    """One of the ops on 256 entries of 512 rows, or on 512 tokens of 4 chunks."""
    launch = getattr(entries_ops, name)._init_fn.__wrapped__
    columns, rows = integers(len(ENTRY_FIELDS), 256), torch.zeros(512)
    tokens, table, embedding = (
        torch.zeros(512, 4097, dtype=torch.int64),
        integers(512, 64),
        torch.zeros(9, 1024, dtype=BF16),
    )
    ids, flags, seeds = integers(256), torch.zeros(256, dtype=torch.bool), torch.zeros(512, dtype=torch.int64)
    {
        "decode_inputs": lambda: launch(columns, tokens, table, embedding, 64),
        "prefill_inputs": lambda: launch(integers(len(CHUNK_FIELDS), 5), tokens, table, embedding, 64, 512),
        "sampling_inputs": lambda: launch(columns, rows, seeds, seeds, seeds, rows, rows),
        "store_tokens": lambda: launch(columns, ids, flags, tokens, integers(256)),
    }[name]()


CASES: dict[str, Callable[[], None]] = {
    "decode 256": lambda: decode(256),
    "decode 64 page 16": lambda: decode(64, block_size=16),
    "decode 16 page 16": lambda: decode(16, block_size=16),
    "decode 16 group 4": lambda: decode(16, group=4),
    "decode 8": lambda: decode(8),
    "decode 8 group 4": lambda: decode(8, group=4),
    "decode 8 page 16 pdl": lambda: decode(8, block_size=16, pdl=True),
    "decode 1 page 16 pdl": lambda: decode(1, block_size=16, pdl=True),
    "decode 1 pdl": lambda: decode(1, pdl=True),
    "decode 1 group 4": lambda: decode(1, group=4),
    "decode 64 split 256": lambda: decode(64, split=256),
    "decode 64 head 80 fp16": lambda: decode(64, head_dim=80, dtype=F16),
    "decode 64 head 256": lambda: decode(64, head_dim=256),
    "decode 4 fp32": lambda: decode(4, dtype=F32),
    "prefill": prefill,
    "prefill page 16 group 4": lambda: prefill(group=4, block_size=16),
    "prefill head 64 fp16": lambda: prefill(head_dim=64, dtype=F16),
    "store": store,
    "store pdl": lambda: store(pdl=True),
    "work list": work,
    "decode inputs": lambda: entries("decode_inputs"),
    "prefill inputs": lambda: entries("prefill_inputs"),
    "sampling inputs": lambda: entries("sampling_inputs"),
    "store tokens": lambda: entries("store_tokens"),
}


def main() -> None:
    """Compile every case and print what the assembler made of it."""
    with offline.recording() as found:
        for name, launch in CASES.items():
            launch()
            figures = vars(offline.report(found[-1]))
            print(
                json.dumps({"case": name, **{key: value for key, value in figures.items() if key != "sass"}}),
                flush=True,
            )


if __name__ == "__main__":
    main()
