"""Adjustments: the tables by row that change logits, allocated when the first row asks for them."""

from collections.abc import Hashable, Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nanofn.batch.masks import Masks, num_words
from nanofn.batch.row_start import RowStart
from nanofn.device.bad_words import NO_WORDS, ending_words, word_table
from nanofn.device.tables import DeviceTables, send
from nanofn_kernels.adjust import (
    ALLOWS,
    BANNED,
    BANS,
    BIASES,
    END,
    ENDS,
    OUTSIDE,
    PENALISES,
    PENALTY_FIELDS,
    PROMPT,
    RULE_FIELDS,
    adjust_logits,
)


class Adjustments:
    """Tables of one row for each device row and a spare one, which padding's row -1 leads to.

    Counts are brought up to date by the token before the one being sampled, wherever it was sampled, and only if they lack it:
    so a step that is repeated counts nothing twice, and no host has to have seen the token.
    """

    def __init__(self, tables: DeviceTables, vocab_size: int) -> None:
        """Allocate what is small.

        Args:
            tables: The tokens.
            vocab_size: Columns of the logits.
        """
        self._tokens, self._vocab_size = tables.tokens, vocab_size
        self._device = tables.tokens.device
        num_rows = len(tables.tokens) + 1
        self._rules = torch.zeros((num_rows, len(RULE_FIELDS)), dtype=torch.int32, device=self._device)
        self._penalties = torch.zeros((num_rows, len(PENALTY_FIELDS)), dtype=torch.float32, device=self._device)
        self._num_counted = torch.zeros(num_rows, dtype=torch.int32, device=self._device)
        self._marks = self._table(torch.uint8, 0)
        self._counts = self._table(torch.int32, 0)
        self._bias = self._table(torch.float32, 0)
        self._masks = torch.zeros((0, 0), dtype=torch.int32, device=self._device)
        self._mask_of = torch.full((num_rows - 1,), -1, dtype=torch.int32, device=self._device)
        self._words = torch.full((num_rows, *NO_WORDS), -1, dtype=torch.int64, device=self._device)
        self._asking: set[int] = set()
        self._banning: set[int] = set()

    def _table(self, dtype: torch.dtype, num_rows: int) -> Tensor:
        return torch.zeros((num_rows, self._vocab_size), dtype=dtype, device=self._device)

    def start(self, starts: Sequence[RowStart]) -> None:
        """Set rows up for new owners, in a number of copies that does not depend on how many there are.

        Mutates:
            the tables, for owners that ask for something and rows whose last owner did.
        """
        told = [start for start in starts if start.row in self._asking or kinds_of(start)]
        if not told:
            return
        kinds = {start.row: kinds_of(start) for start in told}
        for rows, kind in ((self._asking, ~0), (self._banning, BANS)):
            rows.difference_update(kinds)
            rows.update([row for row, asked in kinds.items() if asked & kind])
        self._write_rules(told)
        self._write_marks([start for start in told if kinds[start.row] & ~BIASES])
        self._write_counts([start for start in told if kinds[start.row] & PENALISES])
        self._write_bias([start for start in told if kinds[start.row] & BIASES])
        self._words = word_table(self._words, [start for start in told if kinds[start.row] & BANS])

    def take_masks(self, masks: Masks, mask_of: NDArray[np.int32]) -> None:
        """Send the masks of the step that is adjusted next.

        Args:
            masks: For entries that follow a grammar.
            mask_of: [num_entries] int32. Which of the masks an entry has; -1 for none.

        Mutates:
            the memory that `adjust` reads masks from.
        """
        if not len(self._masks):
            shape = len(self._rules) - 1, num_words(self._vocab_size)
            self._masks = torch.zeros(shape, dtype=torch.int32, device=self._device)
        self._masks[: len(masks.rows)] = send(masks.words.view(np.int32), self._device)
        self._mask_of[: len(mask_of)] = send(mask_of, self._device)

    def adjust(self, logits: Tensor, rows: Tensor, positions: Tensor, *, is_masked: bool) -> Tensor:
        """Apply what the rows ask for.

        Args:
            logits: [num_entries, vocab_size] any float dtype. Read only.
            rows: [num_entries] int32. -1 is padding.
            positions: [num_entries] int32. Position of the token being sampled.
            is_masked: Whether masks were taken for these entries.

        Returns:
            [num_entries, vocab_size] fp32.

        Mutates:
            counts, by the newest token of each row.
        """
        row = rows.to(torch.int64)
        if len(self._counts):
            self._count_newest(row, positions)
        masks = (self._masks, self._mask_of[: len(rows)]) if is_masked else ()
        tables = self._rules, self._penalties, self._marks, self._counts, self._bias, *masks
        if not self._banning:
            return adjust_logits(logits, rows, positions, *tables)
        last, at_row = ending_words(self._words, self._tokens, self._rules[:, 1], row, positions)
        self._marks[at_row, last] |= BANNED
        result = adjust_logits(logits, rows, positions, *tables)
        self._marks[row.unsqueeze(1), last] &= ~BANNED & 0xFF
        return result

    def form(self, *, is_masked: bool) -> Hashable:
        """Say what a captured `adjust` depends on besides entries and logits: which tables it reads, and where they are.

        Only those that it reads, so that one which comes or grows later makes nobody else's graph useless.
        """
        tables = [self._marks, self._counts, self._bias]
        tables += [self._words] * bool(self._banning) + [self._masks] * is_masked
        return is_masked, bool(self._banning), *[(table.data_ptr(), table.shape) for table in tables]

    def _count_newest(self, row: Tensor, positions: Tensor) -> None:
        token = self._tokens[row, (positions - 1).clamp(min=0).to(torch.int64)]
        is_new = self._num_counted[row] < positions
        self._counts[row, token] += is_new.to(torch.int32)
        self._num_counted[row] = torch.maximum(self._num_counted[row], positions)

    def _write_rules(self, starts: Sequence[RowStart]) -> None:
        told = [
            (start.row, kinds_of(start), start.num_prompt_tokens, min(start.sampling.min_tokens, 2**31 - 1))
            for start in starts
        ]
        penalties = [
            (each.repetition_penalty, each.presence_penalty, each.frequency_penalty)
            for each in (start.sampling for start in starts)
        ]
        row, *rules = send(np.array(told, dtype=np.int32).T.copy(), self._device)
        self._rules[row.long()] = torch.stack(rules, dim=1)
        self._penalties[row.long()] = send(np.array(penalties, dtype=np.float32), self._device)

    def _write_marks(self, starts: Sequence[RowStart]) -> None:
        if not starts:
            return
        if not len(self._marks):
            self._marks = self._table(torch.uint8, len(self._rules))
        allowing = [(start.row, start.sampling.allowed_token_ids) for start in starts]
        told = np.array([(row, OUTSIDE if allowed is not None else 0) for row, allowed in allowing], dtype=np.int64)
        row, mark = send(told.T.copy(), self._device)
        self._marks[row] = mark.to(torch.uint8).unsqueeze(1)
        self._marks[self._pairs([(row, allowed) for row, allowed in allowing if allowed is not None])] = 0
        ends = self._pairs([(start.row, start.sampling.end_token_ids) for start in starts])
        self._marks[ends] |= END
        prompts = [
            (start.row, start.token_ids[: start.num_prompt_tokens])
            for start in starts
            if start.sampling.repetition_penalty != 1
        ]
        self._marks[self._pairs(prompts)] |= PROMPT

    def _write_counts(self, starts: Sequence[RowStart]) -> None:
        if not starts:
            return
        if not len(self._counts):
            self._counts = self._table(torch.int32, len(self._rules))
        row, length = send(np.array([(start.row, len(start.token_ids)) for start in starts]).T.copy(), self._device)
        self._counts[row] = 0
        self._num_counted[row] = length.to(torch.int32)
        pairs = self._pairs([(start.row, start.token_ids[start.num_prompt_tokens :]) for start in starts])
        ones = torch.ones(len(pairs[0]), dtype=torch.int32, device=self._device)
        self._counts.index_put_(pairs, ones, accumulate=True)

    def _write_bias(self, starts: Sequence[RowStart]) -> None:
        if not starts:
            return
        if not len(self._bias):
            self._bias = self._table(torch.float32, len(self._rules))
        self._bias[send(np.array([start.row for start in starts], dtype=np.int64), self._device)] = 0
        pairs = self._pairs([(start.row, [token_id for token_id, _ in start.sampling.logit_bias]) for start in starts])
        amounts = [amount for start in starts for _, amount in start.sampling.logit_bias]
        self._bias.index_put_(pairs, send(np.array(amounts, dtype=np.float32), self._device), accumulate=True)

    def _pairs(self, ids_of: Iterable[tuple[int, Sequence[int]]]) -> tuple[Tensor, Tensor]:
        """List (row, id) for the ids of each row, in one copy."""
        told = list(ids_of)
        lengths = np.array([(row, len(ids)) for row, ids in told], dtype=np.int64).reshape(-1, 2)
        rows = np.repeat(lengths[:, 0], lengths[:, 1])
        ids = np.fromiter((token_id for _, ids in told for token_id in ids), np.int64, len(rows))
        row, token_id = send(np.stack((rows, ids)), self._device)
        return row, token_id


def kinds_of(start: RowStart) -> int:
    """Say what a row asks for, as bits."""
    sampling = start.sampling
    asked = {
        ALLOWS: sampling.allowed_token_ids is not None,
        BANS: bool(sampling.bad_words),
        ENDS: sampling.min_tokens > 0,
        BIASES: bool(sampling.logit_bias),
        PENALISES: sampling.penalises,
    }
    return sum([kind for kind, is_asked in asked.items() if is_asked])
