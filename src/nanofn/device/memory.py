"""How many blocks fit: measured here, decided by a pure function."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from attrs import frozen

from nanofn.config import blocks_for
from nanofn.errors import ConfigError

CPU_SHARE = 0.25
"""Of the free memory, at most this much becomes K/V on a CPU: the machine is rarely ours alone."""


@frozen
class PoolSize:
    """A pool that fits.

    Attributes:
        num_blocks: Blocks.
        max_model_len: Most tokens of a sequence, lowered to what the pool holds where the caller left it open.
    """

    num_blocks: int
    max_model_len: int


def free_bytes(device: torch.device) -> int:
    """Measure the memory that could be allocated on a device now."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    names = os.sysconf_names
    pages = os.sysconf("SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in names else "SC_PHYS_PAGES")
    return pages * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def room_on(device: torch.device, what: str, remedy: str) -> Iterator[None]:
    """Turn a device's running out of memory, while an engine is set up on it, into an error that says what to do.

    Args:
        device: Where there may be no room.
        what: What is to fit there.
        remedy: What its user can do.

    Raises:
        ConfigError: In place of torch's error.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"{what} does not fit on {device}, where {free_bytes(device) / 2**30:.2f} GiB are free now: {remedy} ({error})"
        ) from error


def pool_size(
    *,
    available_bytes: int,
    block_bytes: int,
    block_size: int,
    max_num_seqs: int,
    model_max_len: int,
    max_model_len: int | None,
    num_kv_blocks: int | None,
) -> PoolSize:
    """Decide how many blocks the pool gets, and how long a sequence may be.

    Args:
        available_bytes: Memory for K/V.
        block_bytes: Bytes of a block over all layers.
        block_size: Tokens per block.
        max_num_seqs: Most running sequences; the pool never exceeds what they could fill.
        model_max_len: The model's own limit.
        max_model_len: What the caller asked for, or None: the model's limit or what fits, whichever is less.
        num_kv_blocks: What the caller asked for, or None: what fits.

    Raises:
        ConfigError: What the caller asked for explicitly does not fit.
    """
    wanted_len = max_model_len or model_max_len
    # A sequence's last token needs no slot.
    per_sequence = blocks_for(wanted_len - 1, block_size)
    fits = available_bytes // block_bytes
    num_blocks = min(fits, max_num_seqs * per_sequence) if num_kv_blocks is None else num_kv_blocks
    if num_kv_blocks is not None and num_kv_blocks > fits:
        raise ConfigError(
            f"num_kv_blocks {num_kv_blocks} needs {num_kv_blocks * block_bytes / 2**30:.2f} GiB, available for K/V are "
            f"{available_bytes / 2**30:.2f} GiB; lower it to at most {fits}"
        )
    if num_blocks < 1:
        raise ConfigError(
            f"a block of {block_size} tokens needs {block_bytes} bytes, available for K/V are {available_bytes}; "
            "free some memory or lower block_size"
        )
    if num_blocks >= per_sequence:
        return PoolSize(num_blocks, wanted_len)
    longest = num_blocks * block_size + 1
    if max_model_len is not None:
        raise ConfigError(
            f"max_model_len {max_model_len} needs {per_sequence} blocks of {block_size} tokens, the pool has {num_blocks}; "
            f"lower max_model_len to at most {longest}, or give K/V more memory (num_kv_blocks, gpu_memory_utilization)"
        )
    return PoolSize(num_blocks, longest)
