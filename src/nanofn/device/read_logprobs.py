"""Log-probabilities of a step, for the rows that asked for them: computed at its launch, read when it is collected."""

from collections.abc import Sequence

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from nanofn.batch.row_start import RowStart
from nanofn.batch.step_output import PromptLogprobs, TokenLogprobs
from nanofn.device.tables import send
from nanofn.model.decoder import compute_logits
from nanofn.model.params import ModelParams
from nanofn.request import SequenceId, TokenId
from nanofn.sampling.logprobs import MAX_ROWS, token_logprobs


@frozen(eq=False)
class _Report:
    """Some tokens' log-probabilities on their way to the host.

    Attributes:
        ids: [num_rows, 2 + num_top] int64: token id, rank, likeliest ids.
        logprobs: [num_rows, 1 + num_top] fp32: of the token, of the likeliest.
        counts: How many of the likeliest each row asked for.
    """

    ids: Tensor
    logprobs: Tensor
    counts: Sequence[int]

    def read(self) -> tuple[TokenLogprobs, ...]:
        """Make objects of it, once the copies are through."""
        rows = zip(self.ids.tolist(), self.logprobs.tolist(), self.counts, strict=True)
        return tuple(
            [
                TokenLogprobs(
                    TokenId(ids[0]), logprobs[0], ids[1], tuple(zip(ids[2 : 2 + count], logprobs[1:], strict=False))
                )
                for ids, logprobs, count in rows
            ]
        )


@frozen(eq=False)
class SampledReport:
    """A step's sampled tokens, for the rows that asked.

    Attributes:
        sequence_ids: Their owners.
        tokens: One for each.
    """

    sequence_ids: tuple[SequenceId, ...]
    tokens: _Report

    def read(self) -> tuple[tuple[SequenceId, TokenLogprobs], ...]:
        """Pair them up, once the copies are through."""
        return tuple(zip(self.sequence_ids, self.tokens.read(), strict=True))


@frozen(eq=False)
class PromptReport:
    """Some consecutive tokens of a prompt.

    Attributes:
        sequence_id: Whose.
        first_position: Position of the first one.
        parts: The tokens in order.
    """

    sequence_id: SequenceId
    first_position: int
    parts: tuple[_Report, ...]

    def read(self) -> PromptLogprobs:
        """Join the parts, once the copies are through."""
        return PromptLogprobs(
            self.sequence_id, self.first_position, tuple([each for part in self.parts for each in part.read()])
        )


def sampled_logprobs(
    logits: Tensor, token_ids: Tensor, places: Sequence[int], starts: Sequence[RowStart]
) -> SampledReport | None:
    """Report the new tokens of those rows that asked for it; None if none did.

    Args:
        logits: [num_entries, vocab_size] any float dtype, as the model gave them.
        token_ids: [at least num_entries] integer. -1 is no token.
        places: Where each row's logits and token are.
        starts: The rows' owners.
    """
    wanted = [
        (place, start) for place, start in zip(places, starts, strict=True) if start.sampling.logprobs is not None
    ]
    if not wanted:
        return None
    at = [place for place, _ in wanted]
    if at == list(range(len(at))):
        logits, token_ids = logits[: len(at)], token_ids[: len(at)]
    else:
        index = send(np.array(at, dtype=np.int64), logits.device)
        logits, token_ids = logits[index], token_ids[index]
    report = _report(logits, token_ids, [start.sampling.logprobs or 0 for _, start in wanted])
    return SampledReport(tuple([start.sequence_id for _, start in wanted]), report)


def prompt_logprobs(
    params: ModelParams, hidden: Tensor, tokens: Tensor, start: RowStart, first_position: int
) -> PromptReport | None:
    """Report the prompt tokens that follow some computed positions; None if none does.

    Logits are computed for few rows at a time, so that a long prompt does not need as many rows of them.

    Args:
        params: For the head.
        hidden: [num_tokens, hidden_size]. Of consecutive positions.
        tokens: [max_model_len + 1] int64. The row's.
        start: The row's owner.
        first_position: Position of the first hidden state.
    """
    end = min(first_position + hidden.shape[0] + 1, start.num_prompt_tokens)
    targets = tokens[first_position + 1 : end]
    num_top, parts = start.sampling.prompt_logprobs or 0, list[_Report]()
    for place in range(0, len(targets), MAX_ROWS):
        part = targets[place : place + MAX_ROWS]
        logits = compute_logits(params, hidden[place : place + len(part)])
        parts.append(_report(logits, part, [num_top] * len(part)))
    return PromptReport(start.sequence_id, first_position + 1, tuple(parts)) if parts else None


def _report(logits: Tensor, token_ids: Tensor, wanted: list[int]) -> _Report:
    vocab_size = logits.shape[1]
    counts = [vocab_size if count < 0 else min(count, vocab_size) for count in wanted]
    token_ids = token_ids.to(torch.int64).clamp(min=0)
    logprob, rank, top_ids, top_logprobs = token_logprobs(logits, token_ids, max(counts))
    ids = torch.cat((token_ids.unsqueeze(1), rank.unsqueeze(1), top_ids), dim=1)
    return _Report(_fetch(ids), _fetch(torch.cat((logprob.unsqueeze(1), top_logprobs), dim=1)), counts)


def _fetch(tensor: Tensor) -> Tensor:
    """Send a tensor to the host without waiting; torch's allocator keeps pinned memory while copies into it are queued."""
    if tensor.device.type != "cuda":
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)
