"""FusedExecutor: the GPU's path. Fused kernels, steps as captured graphs, and copies that nothing waits for.

The same code runs without graphs (`enforce_eager`), and on a CPU, where the ops run their references.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor

from nanofn.batch.build import StepBatch, build
from nanofn.batch.device_entries import chunk_array, decode_entries, sampling_entries
from nanofn.batch.masks import NO_MASKS, Masks
from nanofn.batch.row_start import RowStart
from nanofn.batch.step_output import NOBODY, StepOutput
from nanofn.config import Limits
from nanofn.device.decode_graphs import Bucket, bucket_sizes, make_bucket
from nanofn.device.prefill_graphs import PrefillGraphs
from nanofn.device.read_logprobs import PromptReport, prompt_logprobs, sampled_logprobs
from nanofn.device.row_params import RowParams
from nanofn.device.sampler import sample_entries
from nanofn.device.second_use import SecondUse
from nanofn.device.staging import Slot
from nanofn.device.step_memory import allocate_step_memory
from nanofn.device.tables import extend_block_tables, send, start_rows
from nanofn.device.under_way import Forwarded, Pending
from nanofn.errors import LogitsError
from nanofn.model.layers import rms_norm
from nanofn.model.params import ModelParams
from nanofn.model.prefill import Layer, prefill_layer
from nanofn.request import TokenId
from nanofn.state.step_plan import StepPlan
from nanofn_kernels.linear import linear

_on_gpu: "WeakSet[FusedExecutor]" = WeakSet()
"""Those that are open: their graphs know the library's workspaces by address."""


class FusedExecutor:
    """Runs plans on one stream. Between a launch and its `collect` the host is free."""

    def __init__(
        self,
        params: ModelParams,
        limits: Limits,
        device: torch.device,
        *,
        depth: int = 2,
        layer: Layer = prefill_layer,
        captures: bool = False,
    ) -> None:
        """Allocate tables and K/V, and capture the decode graphs.

        Args:
            params: The weights.
            limits: The bounds.
            device: Where the weights are.
            depth: Most steps under way.
            layer: `prefill_layer`, or what a compiler made of it.
            captures: Whether steps are captured; on a GPU only.
        """
        is_gpu = device.type == "cuda"
        self._device, self._limits = device, limits
        self._params: ModelParams | None = params
        self._stream = torch.cuda.Stream(device) if is_gpu else None
        if is_gpu:
            _on_gpu.add(self)  # first: an engine that another thread closes leaves these graphs their workspaces
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            memory = allocate_step_memory(params, limits, device, depth=depth, num_blocks=limits.num_blocks)
            self._memory, self._tables, self._staging = memory, memory.tables, memory.staging
            self._pool = torch.cuda.graph_pool_handle() if captures else None
            self._buckets: dict[int, Bucket] = {}
            self._sizes = bucket_sizes(limits)
            for size in reversed(self._sizes) if captures else ():
                self._bucket(size)
            self._prefills = PrefillGraphs(params, memory, limits, layer, SecondUse("prefill steps", self._pool))
            self._rows = RowParams(self._tables, params.head.shape[0])
        self._adjusted = SecondUse("adjusted steps", self._pool)
        self._last: tuple[Bucket, Callable[[], None]] | None = None
        self._awaits_masks: Forwarded | None = None
        self._pending: deque[Pending] = deque()

    def _bucket(self, size: int) -> Bucket:
        """The decode step of a number of entries, made at its first use where nothing is captured."""
        if size not in self._buckets:
            assert self._params is not None
            self._buckets[size] = make_bucket(self._params, self._memory, size, self._pool)
        return self._buckets[size]

    def _size_of(self, count: int) -> int:
        """The least bucket that holds so many entries."""
        return next(size for size in self._sizes if size >= count)

    @torch.inference_mode()
    def launch(self, step_plan: StepPlan, starts: Sequence[RowStart], *, awaits_masks: bool = False) -> None:
        """Queue a plan's work, or its part that needs no masks."""
        assert len(self._pending) < len(self._staging.slots), "more steps under way than slots: results would be lost"
        with torch.cuda.stream(self._stream):
            batch, slot = build(step_plan), self._staging.next_slot()
            if starts:
                start_rows(self._tables, starts)
                self._rows.start(starts)
            # A decode step has no hidden states, which a prompt's tokens are reported by.
            if batch.only_decodes and not self._rows.reports_prompts(step_plan.entries):
                forwarded = self._decode(batch, slot, bool(starts))
            else:
                forwarded = self._prefill(step_plan, batch, slot)
            if awaits_masks:
                self._awaits_masks = forwarded
            else:
                self._sample(forwarded, NO_MASKS)

    @torch.inference_mode()
    def sample(self, masks: Masks) -> None:
        """Queue the choice of tokens with masks."""
        forwarded, self._awaits_masks = self._awaits_masks, None
        assert forwarded is not None
        with torch.cuda.stream(self._stream):
            self._sample(forwarded, masks)

    def _decode(self, batch: StepBatch, slot: Slot, has_starts: bool) -> Forwarded:
        """Decode: every entry is one token. Its logits are at the entry's place."""
        count = batch.entries.shape[1]
        size = self._size_of(count)
        entries = decode_entries(batch, self._limits.max_num_seqs, with_blocks=not has_starts)
        if has_starts:
            extend_block_tables(self._tables, batch.new_blocks)
        bucket = self._bucket(size)
        self._staging.upload(slot, entries, size)
        logits = bucket.forward()
        places = slice(0, count) if len(batch.sampling) == count else batch.sampling
        return Forwarded(slot, batch.sampled_rows, batch.sampled_positions, logits, places, bucket)

    def _prefill(self, step_plan: StepPlan, batch: StepBatch, slot: Slot) -> Forwarded:
        """Prefill or mixed: only the entries that sample have logits."""
        assert self._params is not None
        params, config = self._params, self._params.config
        extend_block_tables(self._tables, batch.new_blocks)
        chunks = self._staging.upload_chunks(slot, chunk_array(batch, self._limits.max_num_seqs))
        hidden = self._prefills.run(chunks, batch.num_tokens)
        sampling = batch.sampling
        last = np.cumsum(batch.entries[2])[sampling] - 1
        # Padded like a decode step, so that head and sampler run in shapes that are compiled already.
        size = self._size_of(len(sampling))
        self._staging.upload(slot, sampling_entries(batch), size)
        rows = hidden[send(np.pad(last, (0, size - len(sampling))), self._device)]
        logits = linear(rows, params.head, None, params.final_norm, eps=config.rms_norm_eps)
        places, of_prompts = slice(0, len(sampling)), self._prompt_logprobs(step_plan, hidden)
        return Forwarded(slot, batch.sampled_rows, batch.sampled_positions, logits, places, None, of_prompts)

    def _sample(self, forwarded: Forwarded, masks: Masks) -> None:
        """Choose tokens, and send them back."""
        logits, sampled, places, bucket = forwarded.logits, forwarded.rows, forwarded.places, forwarded.bucket
        size, rows, filters = logits.shape[0], self._rows, self._rows.filters(sampled)
        if masks.rows or rows.adjusts(sampled, forwarded.positions):
            self._sample_adjusted(forwarded, masks, filters)
        elif bucket is not None:
            choose = partial(bucket.sample, filters)
            choose()
            self._last = bucket, choose
        else:
            entries, output = self._staging.entries_of(size), self._staging.device_output
            sample_entries(logits, entries, self._tables, output, filters)
        report = None
        if rows.reports(sampled):
            at = np.arange(size)[places].tolist()
            report = sampled_logprobs(logits, self._staging.device_output, at, sampled, rows.reported)
        # Last, because its event says that all copies of the step are through.
        self._staging.download(forwarded.slot, size)
        self._pending.append(Pending(forwarded.slot, places, report, forwarded.prompt_logprobs))

    def _sample_adjusted(self, forwarded: Forwarded, masks: Masks, filters: bool) -> None:
        """Choose tokens where rows change their logits: about twenty launches, so decode steps are captured."""
        logits, adjustments = forwarded.logits, self._rows.adjustments
        size, is_masked = len(logits), bool(masks.rows)
        if is_masked:
            mask_of = np.full(size, -1, dtype=np.int32)
            mask_of[forwarded.places] = masks.places_of(forwarded.rows)
            adjustments.take_masks(masks, mask_of)
        entries, tables, output = self._staging.entries_of(size), self._tables, self._staging.device_output

        def work() -> None:
            adjusted = adjustments.adjust(logits, entries[0], entries[1] + 1, is_masked=is_masked)
            sample_entries(adjusted, entries, tables, output, filters)

        if forwarded.bucket is None:  # its logits are elsewhere in each step
            work()
        else:
            choose = partial(self._adjusted.run, (size, filters, adjustments.form(is_masked=is_masked)), work)
            choose()
            self._last = forwarded.bucket, choose

    def _prompt_logprobs(self, step_plan: StepPlan, hidden: Tensor) -> tuple[PromptReport, ...]:
        if not self._rows.reports_prompts(step_plan.entries):
            return ()
        assert self._params is not None
        params, found, first = self._params, list[PromptReport | None](), 0
        for entry in step_plan.entries:
            start, last = self._rows.of(entry.row), first + entry.num_tokens
            if self._rows.reports_prompt(entry.row, entry.first_position):
                final = rms_norm(hidden[first:last], params.final_norm, params.config.rms_norm_eps)
                found.append(
                    prompt_logprobs(params, final, self._tables.tokens[entry.row], start, entry.first_position)
                )
            first = last
        return tuple([each for each in found if each is not None])

    def replay_last_step(self) -> None:
        """Run the graphs of the latest decode step once more, for timing. They write what they wrote before."""
        assert self._last is not None
        bucket, choose = self._last
        with torch.cuda.stream(self._stream):
            bucket.forward()
            choose()

    def collect(self) -> StepOutput:
        """Wait for the oldest plan's tokens."""
        pending = self._pending.popleft()
        pending.slot.wait()
        token_ids = pending.slot.output.numpy()[pending.places].tolist()
        if token_ids and min(token_ids) < 0:
            raise LogitsError(
                f"the model's logits are NaN or infinite for {sum(each < 0 for each in token_ids)} of {len(token_ids)} "
                'sequences; check the weights, or use dtype="float32"'
            )
        return StepOutput(
            tuple(map(TokenId, token_ids)),
            pending.logprobs.read() if pending.logprobs else NOBODY,
            tuple([each.read() for each in pending.prompt_logprobs]),
        )

    def forget(self) -> None:
        """Drop uncollected results."""
        self._pending.clear()
        self._awaits_masks = None

    def is_alive(self) -> bool:
        """Wait for what was launched: a context that is lost says so at every call, a CPU has none to lose.

        Not for the whole device, which is an error while another engine captures in its thread.
        """
        try:
            if self._stream is not None:
                self._stream.synchronize()
        except RuntimeError:
            return False
        return True

    def close(self) -> None:
        """Drop graphs, weights, tables and cache, and hand the memory back to the device, if it is not lost."""
        is_alive = self.is_alive()
        self._params = None
        self.forget()
        self._buckets.clear()
        self._last = None
        del self._rows, self._memory, self._tables, self._staging, self._prefills, self._adjusted
        _on_gpu.discard(self)
        if self._stream is not None and is_alive:
            if not _on_gpu:
                torch._C._cuda_clearCublasWorkspaces()  # noqa: SLF001  33 MiB a stream that nothing else gives back
            torch.cuda.empty_cache()
