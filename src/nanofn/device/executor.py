"""Executor: runs plans in order and returns their tokens in order."""

from collections import deque
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from attrs import frozen
from numpy.typing import NDArray
from torch import Tensor

from nanofn.batch.build import build
from nanofn.batch.masks import NO_MASKS, Masks
from nanofn.batch.row_start import RowStart
from nanofn.batch.step_output import NOBODY, StepOutput
from nanofn.config import Limits
from nanofn.device.read_logprobs import PromptReport, SampledReport, prompt_logprobs, sampled_logprobs
from nanofn.device.row_params import RowParams
from nanofn.device.tables import allocate_tables, extend_block_tables, gather_inputs, start_rows
from nanofn.errors import LogitsError
from nanofn.model.decoder import compute_logits, forward
from nanofn.model.kv_cache import allocate_kv_cache
from nanofn.model.params import ModelParams
from nanofn.request import Row, TokenId
from nanofn.state.step_plan import StepPlan


class Executor(Protocol):
    """What the loop needs of a device. Plans run in launch order, as on one stream; nothing else writes the K/V."""

    def launch(self, step_plan: StepPlan, starts: Sequence[RowStart], *, awaits_masks: bool = False) -> None:
        """Queue a plan's work and return; rows that change owner are set up first.

        Args:
            step_plan: The plan.
            starts: Its started rows.
            awaits_masks: Whether to stop short of choosing tokens. The next plan comes after the call of `sample`.

        Raises:
            Exception: Nothing of this plan will have a result. Earlier plans' results are still to be had.
        """
        ...

    def sample(self, masks: Masks) -> None:
        """Queue the choice of tokens of the plan launched last, which awaits masks.

        Args:
            masks: For rows that follow a grammar. Read before this returns.

        Raises:
            Exception: As `launch` does.
        """
        ...

    def collect(self) -> StepOutput:
        """Wait for the oldest plan not yet collected, which awaits no masks; returns its results."""
        ...

    def forget(self) -> None:
        """Drop the results of every plan not yet collected, and the plan that awaits masks."""
        ...

    def is_alive(self) -> bool:
        """Tell whether the device still works. Asked after a failure: an error of CUDA's can end its context for good."""
        ...

    def close(self) -> None:
        """Give all memory back. Nothing else may be called afterwards."""
        ...


@frozen(eq=False)
class _Forward:
    """A plan whose tokens are yet to be chosen.

    Attributes:
        rows: Device rows of the entries that sample.
        positions: [num_rows] int32. Positions of the tokens being sampled.
        logits: [num_rows, vocab_size] fp32.
        prompt_logprobs: Of prompts.
    """

    rows: list[Row]
    positions: NDArray[np.int32]
    logits: Tensor
    prompt_logprobs: tuple[PromptReport, ...]


class EagerExecutor:
    """Plain torch, one operation after another: the CPU's path, and the reference for every other one."""

    def __init__(self, params: ModelParams, limits: Limits, device: torch.device) -> None:
        config = params.config
        dtype = params.embedding.dtype
        self._params: ModelParams | None = params
        self._block_size = limits.block_size
        self._device = device
        self._tables = allocate_tables(limits, device)
        self._kv_cache = allocate_kv_cache(config, limits.num_blocks, limits.block_size, dtype=dtype, device=device)
        self._rows = RowParams(self._tables, params.head.shape[0])
        self._awaits_masks: _Forward | None = None
        self._results: deque[tuple[Tensor, SampledReport | None, tuple[PromptReport, ...]]] = deque()

    @torch.inference_mode()
    def launch(self, step_plan: StepPlan, starts: Sequence[RowStart], *, awaits_masks: bool = False) -> None:
        """Run a plan, or its part that needs no masks; on a CPU it has run when this returns."""
        forwarded = self._forward(step_plan, starts)
        if awaits_masks:
            self._awaits_masks = forwarded
        else:
            self._sample(forwarded, NO_MASKS)

    @torch.inference_mode()
    def sample(self, masks: Masks) -> None:
        """Choose tokens with masks."""
        forwarded, self._awaits_masks = self._awaits_masks, None
        assert forwarded is not None
        self._sample(forwarded, masks)

    def _forward(self, step_plan: StepPlan, starts: Sequence[RowStart]) -> _Forward:
        tables, batch = self._tables, build(step_plan)
        assert self._params is not None
        if starts:
            start_rows(tables, starts)
            self._rows.start(starts)
        extend_block_tables(tables, batch.new_blocks)
        inputs = gather_inputs(tables, batch, self._block_size)
        hidden = forward(self._params, inputs, self._kv_cache)
        sampling = torch.from_numpy(batch.sampling).to(hidden.device, torch.int64)
        logits = compute_logits(self._params, hidden[inputs.query_start_loc[sampling + 1] - 1])
        if bool(torch.isnan(logits).any()):
            raise LogitsError(
                f"the model's logits are NaN for {int(torch.isnan(logits).any(dim=1).sum())} of {len(sampling)} sequences; "
                'check the weights, or use dtype="float32"'
            )
        return _Forward(batch.sampled_rows, batch.sampled_positions, logits, self._prompt_logprobs(step_plan, hidden))

    def _sample(self, forwarded: _Forward, masks: Masks) -> None:
        rows, positions, logits = forwarded.rows, forwarded.positions, forwarded.logits
        token_ids = self._rows.choose(logits, rows, positions, masks)
        self._tables.tokens[rows, positions] = token_ids.to(torch.int64)
        report = None
        if self._rows.reports(rows):
            report = sampled_logprobs(logits, token_ids, range(len(rows)), rows, self._rows.reported)
        self._results.append((token_ids, report, forwarded.prompt_logprobs))

    def _prompt_logprobs(self, step_plan: StepPlan, hidden: Tensor) -> tuple[PromptReport, ...]:
        assert self._params is not None
        if not self._rows.reports_prompts(step_plan.entries):
            return ()
        found, first = list[PromptReport | None](), 0
        for entry in step_plan.entries:
            start, last = self._rows.of(entry.row), first + entry.num_tokens
            if self._rows.reports_prompt(entry.row, entry.first_position):
                tokens = self._tables.tokens[entry.row]
                found.append(prompt_logprobs(self._params, hidden[first:last], tokens, start, entry.first_position))
            first = last
        return tuple([each for each in found if each is not None])

    def collect(self) -> StepOutput:
        """Read the oldest plan's results."""
        token_ids, report, of_prompts = self._results.popleft()
        if of_prompts and self._device.type == "cuda":
            # Where no entry samples there is no token whose reading would wait.
            torch.cuda.current_stream(self._device).synchronize()
        return StepOutput(
            tuple(map(TokenId, token_ids.tolist())),
            report.read() if report else NOBODY,
            tuple([each.read() for each in of_prompts]),
        )

    def forget(self) -> None:
        """Drop uncollected results."""
        self._results.clear()
        self._awaits_masks = None

    def is_alive(self) -> bool:
        """Wait for what was launched: a context that is lost says so at every call, a CPU has none to lose."""
        try:
            if self._device.type == "cuda":
                torch.cuda.current_stream(self._device).synchronize()
        except RuntimeError:
            return False
        return True

    def close(self) -> None:
        """Drop weights, tables and cache."""
        self._params = None
        self.forget()
        del self._rows, self._tables, self._kv_cache
