"""RowParams: what each row was told about choosing tokens, and the steps from its logits to a choice."""

from collections.abc import Iterable

import torch
from torch import Tensor

from nanofn.batch.row_start import RowStart
from nanofn.device.tables import DeviceTables
from nanofn.request import Row
from nanofn.sampling.adjust import allow_only, forbid, penalise
from nanofn.sampling.sample import sample


class RowParams:
    """Keeps the rows' owners and adjusts their logits. Rows that ask for nothing cost nothing, so who asks is noted.

    Attributes:
        reported: Rows whose new tokens' log-probabilities are wanted.
        reported_prompts: Rows whose prompts' are.

    Penalties count the tokens of the row's own table at each step. So they are right after preemption, under chunked
    prefill and with a token that no host has seen yet.
    """

    def __init__(self, tables: DeviceTables) -> None:
        self._tables = tables
        self._starts: dict[int, RowStart] = {}
        self._adjusted_rows: set[int] = set()
        self._filtered_rows: set[int] = set()
        self.reported: set[int] = set()
        self.reported_prompts: set[int] = set()

    def start(self, start: RowStart) -> None:
        """Note a row's new owner."""
        self._starts[start.row] = start
        sampling = start.sampling
        for rows, is_in in (
            (self._adjusted_rows, _adjusts(start, start.num_prompt_tokens)),
            (self._filtered_rows, sampling.filters),
            (self.reported, sampling.logprobs is not None),
            (self.reported_prompts, sampling.prompt_logprobs is not None),
        ):
            (rows.add if is_in else rows.discard)(start.row)

    def of(self, row: Row) -> RowStart:
        """Look a row's owner up."""
        return self._starts[row]

    def adjusts(self, rows: list[Row]) -> bool:
        """Tell whether any of these rows changes its logits."""
        return not self._adjusted_rows.isdisjoint(rows)

    def filters(self, rows: list[Row]) -> bool:
        """Tell whether any of these rows has top-k, top-p or min-p."""
        return not self._filtered_rows.isdisjoint(rows)

    def reports(self, rows: list[Row]) -> bool:
        """Tell whether any of these rows wants log-probabilities."""
        return not self.reported.isdisjoint(rows)

    def adjusted(
        self, logits: Tensor, places: Iterable[int], rows: list[Row], positions: list[int], masks: dict[Row, Tensor]
    ) -> Tensor:
        """Apply what rows ask for, and grammars' masks.

        Args:
            logits: [num_places, vocab_size] fp32. Read only.
            places: Where each row's logits are.
            rows: Device rows.
            positions: Position of the token being sampled, one per row.
            masks: [vocab_size] bool for rows that follow a grammar: what it allows now.

        Returns:
            [num_places, vocab_size] fp32; `logits` itself where nobody asks for anything.
        """
        if not masks and not self.adjusts(rows):
            return logits
        result = logits.clone()
        for place, row, position in zip(places, rows, positions, strict=True):
            start = self._starts[row]
            if row in masks or _adjusts(start, position):
                result[place] = self._adjusted(logits[place], start, position, masks.get(row))
        return result

    def choose(self, logits: Tensor, rows: list[Row], positions: Tensor, masks: dict[Row, Tensor]) -> Tensor:
        """Adjust logits and sample.

        Args:
            logits: [num_rows, vocab_size] fp32. Read only.
            rows: [num_rows] device rows.
            positions: [num_rows] int64. Position of the token being sampled.
            masks: [vocab_size] bool for rows that follow a grammar: what it allows now.

        Returns:
            [num_rows] int32 token ids.
        """
        tables, device = self._tables, logits.device
        if masks or self.adjusts(rows):
            logits = self.adjusted(logits, range(len(rows)), rows, positions.tolist(), masks)
        index = torch.tensor(rows, dtype=torch.int64, device=device)
        filters: tuple[Tensor, ...] = ()
        if self.filters(rows):
            filters = tables.top_k[index], tables.top_p[index], tables.min_p[index]
        return sample(logits, tables.temperature[index], tables.seed[index], positions, tables.child[index], *filters)

    def _adjusted(self, logits: Tensor, start: RowStart, position: int, mask: Tensor | None) -> Tensor:
        sampling, tokens = start.sampling, self._tables.tokens[start.row]

        def ids(values: tuple[int, ...]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=logits.device)

        # A restriction that would leave nothing is dropped: the ones before it count more, a grammar most of all.
        if mask is not None:
            logits = logits.masked_fill(~mask, -torch.inf)
        if sampling.allowed_token_ids is not None:
            logits = _unless_empty(allow_only(logits, ids(sampling.allowed_token_ids)), logits)
        if sampling.bad_words:
            output = tuple(tokens[start.num_prompt_tokens : position].tolist())
            banned = [word[-1] for word in sampling.bad_words if _ends_with(output, word[:-1])]
            logits = _unless_empty(forbid(logits, ids(tuple(banned))), logits)
        if position - start.num_prompt_tokens < sampling.min_tokens:
            logits = _unless_empty(forbid(logits, ids(sampling.end_token_ids)), logits)
        if sampling.logit_bias:
            biased, amounts = zip(*sampling.logit_bias, strict=True)
            logits = logits.index_add(0, ids(biased), torch.tensor(amounts, device=logits.device))
        if sampling.penalises:
            logits = penalise(
                logits,
                tokens[: start.num_prompt_tokens],
                tokens[start.num_prompt_tokens : position],
                repetition=sampling.repetition_penalty,
                presence=sampling.presence_penalty,
                frequency=sampling.frequency_penalty,
            )
        return logits


def _adjusts(start: RowStart, position: int) -> bool:
    sampling = start.sampling
    return bool(
        sampling.penalises
        or sampling.logit_bias
        or sampling.bad_words
        or sampling.allowed_token_ids is not None
        or position - start.num_prompt_tokens < sampling.min_tokens
    )


def _unless_empty(restricted: Tensor, logits: Tensor) -> Tensor:
    return restricted if bool((restricted > -torch.inf).any()) else logits


def _ends_with(output: tuple[int, ...], tail: tuple[int, ...]) -> bool:
    return not tail or output[-len(tail) :] == tail
