"""Staging: what travels to the device and back for one step, in memory that a copy can read while the host goes on."""

from collections import deque

import numpy as np
import torch
from attrs import field, frozen
from numpy.typing import NDArray
from torch import Tensor

from nanofn.batch.device_entries import num_columns
from nanofn_kernels.entries import CHUNK_FIELDS, ENTRY_FIELDS


@frozen(eq=False)
class Slot:
    """One step's staging memory on the host.

    Attributes:
        entries: [5 * max_num_seqs] int32. Copied to the device before the step.
        chunks: [3 * most columns] int32. Copied to the device before a step that prefills.
        output: [max_num_seqs] int32. Copied back after it: the sampled tokens.
        done: Recorded behind the copy back; None on a CPU, where nothing is ever under way.
    """

    entries: Tensor
    chunks: Tensor
    output: Tensor
    done: "torch.cuda.Event | None"

    def wait(self) -> None:
        """Wait until the step that used this slot last is through."""
        if self.done is not None:
            self.done.synchronize()


@frozen(eq=False)
class Staging:
    """As many slots as steps can be under way, and one more, in turn.

    Attributes:
        device_entries: [5 * max_num_seqs] int32 on the device. Steps follow each other on one stream, so one is enough.
        device_chunks: [3 * most columns] int32 on the device.
        device_output: [max_num_seqs] int32 on the device.
        slots: The host's.
    """

    device_entries: Tensor
    device_chunks: Tensor
    device_output: Tensor
    slots: deque[Slot] = field(factory=deque)

    def next_slot(self) -> Slot:
        """Take the slot that has rested longest, once its copies are through."""
        slot = self.slots[0]
        slot.wait()
        self.slots.rotate(-1)
        return slot

    def upload(self, slot: Slot, entries: NDArray[np.int32], size: int) -> Tensor:
        """Send entries, padded to a size.

        Args:
            slot: From `next_slot`.
            entries: [5, num_entries] int32. See `nanofn_kernels.entries`.
            size: At least num_entries.

        Returns:
            [5, size] int32 on the device, the same memory for the same size.

        Mutates:
            slot, and the device's entries.
        """
        number = len(ENTRY_FIELDS) * size
        staged = slot.entries[:number].numpy().reshape(len(ENTRY_FIELDS), size)
        staged[:, : entries.shape[1]] = entries
        staged[:, entries.shape[1] :] = -1
        self.device_entries[:number].copy_(slot.entries[:number], non_blocking=True)
        return self.entries_of(size)

    def upload_chunks(self, slot: Slot, chunks: NDArray[np.int32]) -> Tensor:
        """Send chunks.

        Args:
            slot: From `next_slot`.
            chunks: [3, num_columns] int32. See `nanofn_kernels.entries`.

        Returns:
            The same on the device, the same memory for the same number of columns.

        Mutates:
            slot, and the device's chunks.
        """
        slot.chunks[: chunks.size].numpy().reshape(chunks.shape)[:] = chunks
        on_device = self.device_chunks[: chunks.size]
        on_device.copy_(slot.chunks[: chunks.size], non_blocking=True)
        return on_device.view(chunks.shape)

    def entries_of(self, size: int) -> Tensor:
        """The device's entries at a size: [5, size] int32."""
        return self.device_entries[: len(ENTRY_FIELDS) * size].view(len(ENTRY_FIELDS), size)

    def download(self, slot: Slot, size: int) -> None:
        """Send the device's output back.

        Mutates:
            slot, once its event has passed.
        """
        slot.output[:size].copy_(self.device_output[:size], non_blocking=True)
        if slot.done is not None:
            slot.done.record()


def allocate_staging(max_num_seqs: int, depth: int, device: torch.device) -> Staging:
    """Allocate the slots for so many steps under way."""
    on_gpu = device.type == "cuda"

    def host(size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.int32, device="cpu", pin_memory=on_gpu)

    numbers = len(ENTRY_FIELDS) * max_num_seqs
    chunks = len(CHUNK_FIELDS) * max(num_columns(1, max_num_seqs), num_columns(max_num_seqs, max_num_seqs))
    slots = [
        Slot(host(numbers), host(chunks), host(max_num_seqs), torch.cuda.Event() if on_gpu else None)
        for _ in range(depth + 1)
    ]
    return Staging(
        torch.full((numbers,), -1, dtype=torch.int32, device=device),
        torch.zeros(chunks, dtype=torch.int32, device=device),
        torch.zeros(max_num_seqs, dtype=torch.int32, device=device),
        deque(slots),
    )
