"""Executor: runs plans in order and returns their tokens in order."""

from collections import deque
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from nanofn.batch.build import build
from nanofn.batch.row_start import RowStart
from nanofn.config import Limits
from nanofn.device.tables import allocate_tables, extend_block_tables, gather_inputs, start_row
from nanofn.errors import LogitsError
from nanofn.model.decoder import compute_logits, forward
from nanofn.model.kv_cache import allocate_kv_cache
from nanofn.model.params import ModelParams
from nanofn.request import TokenId
from nanofn.sampling.sample import sample
from nanofn.state.step_plan import StepPlan


class Executor(Protocol):
    """What the loop needs of a device. Plans run in launch order, as on one stream; nothing else writes the K/V."""

    def launch(self, step_plan: StepPlan, starts: Sequence[RowStart]) -> None:
        """Queue a plan's work and return; rows that change owner are set up first.

        Raises:
            Exception: Nothing of this plan will have a result. Earlier plans' results are still to be had.
        """
        ...

    def collect(self) -> tuple[TokenId, ...]:
        """Wait for the oldest launched plan; returns its sampled tokens, one per sampling entry, in entry order."""
        ...

    def forget(self) -> None:
        """Drop the results of every plan not yet collected."""
        ...

    def is_alive(self) -> bool:
        """Tell whether the device still works. Asked after a failure: an error of CUDA's can end its context for good."""
        ...

    def close(self) -> None:
        """Give all memory back. Nothing else may be called afterwards."""
        ...


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
        self._results: deque[Tensor] = deque()

    @torch.inference_mode()
    def launch(self, step_plan: StepPlan, starts: Sequence[RowStart]) -> None:
        """Run a plan; on a CPU it has run when this returns."""
        tables, batch = self._tables, build(step_plan)
        assert self._params is not None
        for start in starts:
            start_row(tables, start)
        extend_block_tables(tables, batch.new_blocks)
        inputs = gather_inputs(tables, batch, self._block_size)
        hidden = forward(self._params, inputs, self._kv_cache)
        sampling = torch.from_numpy(batch.sampling).to(hidden.device, torch.int64)
        rows = torch.from_numpy(batch.entries[0][batch.sampling]).to(hidden.device, torch.int64)
        positions = inputs.seq_lens[sampling]
        logits = compute_logits(self._params, hidden[inputs.query_start_loc[sampling + 1] - 1])
        if bool(torch.isnan(logits).any()):
            bad = sorted({int(row) for row in rows[torch.isnan(logits).any(dim=1)]})
            raise LogitsError(f'the model\'s logits are NaN for rows {bad}: check the weights, or use dtype="float32"')
        token_ids = sample(logits, tables.temperature[rows], tables.seed[rows], positions, tables.child[rows])
        tables.tokens[rows, positions] = token_ids.to(torch.int64)
        self._results.append(token_ids)

    def collect(self) -> tuple[TokenId, ...]:
        """Read the oldest plan's tokens."""
        return tuple(map(TokenId, self._results.popleft().tolist()))

    def forget(self) -> None:
        """Drop uncollected results."""
        self._results.clear()

    def is_alive(self) -> bool:
        """Wait for the device: a context that is lost says so at every call, a CPU has none to lose."""
        try:
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
        except RuntimeError:
            return False
        return True

    def close(self) -> None:
        """Drop weights, tables and cache."""
        self._params = None
        self._results.clear()
        del self._tables, self._kv_cache
