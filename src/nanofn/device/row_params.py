"""RowParams: what each row was told about choosing tokens, and the steps from its logits to a choice."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nanofn.batch.masks import NO_MASKS, Masks
from nanofn.batch.row_start import RowStart
from nanofn.device.adjustments import Adjustments, kinds_of
from nanofn.device.read_logprobs import Wanted
from nanofn.device.tables import DeviceTables, send
from nanofn.request import Row
from nanofn.sampling.sample import sample
from nanofn.state.step_plan import PlanEntries
from nanofn_kernels.adjust import ENDS

_ALWAYS = 2**62
"""A position that no row comes to."""


class RowParams:
    """Keeps the rows' owners and adjusts their logits. Rows that ask for nothing cost nothing, so who asks is noted.

    Attributes:
        adjustments: The tables that change logits.
        reported: What those rows report whose new tokens' log-probabilities are wanted.
    """

    def __init__(self, tables: DeviceTables, vocab_size: int) -> None:
        self._tables = tables
        self.adjustments = Adjustments(tables, vocab_size)
        self._starts: dict[int, RowStart] = {}
        self._adjusted_until: dict[int, int] = {}
        self._filtered_rows: set[int] = set()
        self.reported: dict[Row, Wanted] = {}
        self._reported_prompts: set[int] = set()

    def start(self, starts: Sequence[RowStart]) -> None:
        """Note rows' new owners, whose tokens are in the tables."""
        for start in starts:
            row, sampling = start.row, start.sampling
            self._starts[row] = start
            self._adjusted_until.pop(row, None)
            kinds = kinds_of(start)
            if kinds:
                # Where only an early end is held back, the row is a plain one from there on.
                ends_at = start.num_prompt_tokens + sampling.min_tokens
                self._adjusted_until[row] = ends_at if kinds == ENDS else _ALWAYS
            self.reported.pop(row, None)
            if sampling.logprobs is not None:
                self.reported[row] = Wanted(start.sequence_id, sampling.logprobs)
            for rows, is_in in (
                (self._filtered_rows, sampling.filters),
                (self._reported_prompts, sampling.prompt_logprobs is not None),
            ):
                (rows.add if is_in else rows.discard)(row)
        self.adjustments.start(starts)

    def of(self, row: Row) -> RowStart:
        """Look a row's owner up."""
        return self._starts[row]

    def adjusts(self, rows: Sequence[Row], positions: NDArray[np.int32]) -> bool:
        """Tell whether any of these rows changes its logits at its position, that of the token being sampled."""
        until = self._adjusted_until
        if until.keys().isdisjoint(rows):
            return False
        return any(position < until.get(row, 0) for row, position in zip(rows, positions.tolist(), strict=True))

    def filters(self, rows: Sequence[Row]) -> bool:
        """Tell whether any of these rows has top-k, top-p or min-p."""
        return not self._filtered_rows.isdisjoint(rows)

    def reports(self, rows: Sequence[Row]) -> bool:
        """Tell whether any of these rows wants log-probabilities."""
        return not self.reported.keys().isdisjoint(rows)

    def reports_prompts(self, entries: PlanEntries) -> bool:
        """Tell whether any of a plan's entries does: see `reports_prompt`."""
        if not self._reported_prompts or self._reported_prompts.isdisjoint(entries.row):
            return False
        return any(map(self.reports_prompt, entries.row, entries.first_position))

    def reports_prompt(self, row: Row, first_position: int) -> bool:
        """Tell whether a row wants log-probabilities of prompt tokens that follow this position."""
        return row in self._reported_prompts and first_position + 1 < self._starts[row].num_prompt_tokens

    def adjusted(
        self, logits: Tensor, rows: Tensor, positions: Tensor, masks: Masks, mask_of: NDArray[np.int32]
    ) -> Tensor:
        """Apply what rows ask for, and grammars' masks: see `Adjustments`."""
        if masks.rows:
            self.adjustments.take_masks(masks, mask_of)
        return self.adjustments.adjust(logits, rows, positions, is_masked=bool(masks.rows))

    def choose(
        self,
        logits: Tensor,
        rows: Sequence[Row],
        positions: NDArray[np.int32],
        masks: Masks = NO_MASKS,
    ) -> Tensor:
        """Adjust logits and sample.

        Args:
            logits: [num_rows, vocab_size] fp32. Read only.
            rows: Device rows.
            positions: [num_rows]. Position of the token being sampled.
            masks: For rows that follow a grammar.

        Returns:
            [num_rows] int32 token ids.
        """
        tables, device = self._tables, logits.device
        at = send(np.array([rows, positions], dtype=np.int32), device)
        if masks.rows or self.adjusts(rows, positions):
            logits = self.adjusted(logits, at[0], at[1], masks, masks.places_of(rows))
        index, position = at.to(torch.int64)
        filters: tuple[Tensor, ...] = ()
        if self.filters(rows):
            filters = tables.top_k[index], tables.top_p[index], tables.min_p[index]
        return sample(logits, tables.temperature[index], tables.seed[index], position, tables.child[index], *filters)
