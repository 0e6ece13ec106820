"""Log-probabilities of a step, for the rows that asked for them: computed at its launch, read when it is collected."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from nanofn.batch.logprob_record import record_bytes
from nanofn.batch.row_start import RowStart
from nanofn.batch.step_output import PromptLogprobs
from nanofn.device.tables import send
from nanofn.model.decoder import compute_logits
from nanofn.model.params import ModelParams
from nanofn.request import Row, SequenceId
from nanofn.sampling.logprobs import MAX_ROWS, token_logprobs


@frozen
class Wanted:
    """What a row reports of each new token.

    Attributes:
        sequence_id: Its owner.
        num_top: How many of the likeliest ids.
    """

    sequence_id: SequenceId
    num_top: int


@frozen(eq=False)
class _Report:
    """Some tokens' log-probabilities on their way to the host.

    Attributes:
        words: [num_rows, num_words] int32: records, see `record_type`, each as wide as the widest.
        sizes: Bytes of each row's record, which is as wide as it asked for.
    """

    words: Tensor
    sizes: Sequence[int]

    def read(self) -> list[bytes]:
        """Part it into records, once the copy is through."""
        data, width = self.words.numpy().tobytes(), 4 * self.words.shape[1]
        begins = range(0, len(data), width)
        return [data[begin : begin + size] for begin, size in zip(begins, self.sizes, strict=True)]


@frozen(eq=False)
class SampledReport:
    """A step's sampled tokens, for the rows that asked.

    Attributes:
        sequence_ids: Their owners.
        tokens: One for each.
    """

    sequence_ids: Sequence[SequenceId]
    tokens: _Report

    def read(self) -> Mapping[SequenceId, bytes]:
        """Pair them up, once the copy is through."""
        return dict(zip(self.sequence_ids, self.tokens.read(), strict=True))


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
        records = tuple([record for part in self.parts for record in part.read()])
        return PromptLogprobs(self.sequence_id, self.first_position, records)


def sampled_logprobs(
    logits: Tensor, token_ids: Tensor, places: Sequence[int], rows: Sequence[Row], wanted: Mapping[Row, Wanted]
) -> SampledReport | None:
    """Report the new tokens of those rows that asked for it; None if none did.

    Args:
        logits: [num_entries, vocab_size] any float dtype, as the model gave them.
        token_ids: [at least num_entries] integer. -1 is no token.
        places: Where each row's logits and token are.
        rows: Device rows.
        wanted: What those rows report that do.
    """
    asked = [(place, wanted[row]) for place, row in zip(places, rows, strict=True) if row in wanted]
    if not asked:
        return None
    at = [place for place, _ in asked]
    if at == list(range(len(at))):
        logits, token_ids = logits[: len(at)], token_ids[: len(at)]
    else:
        index = send(np.array(at, dtype=np.int64), logits.device)
        logits, token_ids = logits[index], token_ids[index]
    report = _report(logits, token_ids, [each.num_top for _, each in asked])
    return SampledReport([each.sequence_id for _, each in asked], report)


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


def _report(logits: Tensor, token_ids: Tensor, wanted: Sequence[int]) -> _Report:
    vocab_size = logits.shape[1]
    counts = [vocab_size if count < 0 else min(count, vocab_size) for count in wanted]
    token_ids = token_ids.to(torch.int64).clamp(min=0)
    logprob, rank, top_ids, top_logprobs = token_logprobs(logits, token_ids, max(counts))
    ids = torch.cat((token_ids.unsqueeze(1), top_ids), dim=1).to(torch.int32)
    bits = torch.cat((logprob.unsqueeze(1), top_logprobs), dim=1).view(torch.int32)
    words = torch.cat((rank.to(torch.int32).unsqueeze(1), torch.stack((ids, bits), dim=2).flatten(1)), dim=1)
    return _Report(_fetch(words), [record_bytes(count) for count in counts])


def _fetch(tensor: Tensor) -> Tensor:
    """Send a tensor to the host without waiting; torch's allocator keeps pinned memory while copies into it are queued."""
    if tensor.device.type != "cuda":
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)
