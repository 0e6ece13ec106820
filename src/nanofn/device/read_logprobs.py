"""Log-probabilities of a step, for the rows that asked for them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from nanofn.batch.row_start import RowStart
from nanofn.batch.step_output import PromptLogprobs, TokenLogprobs
from nanofn.model.decoder import compute_logits
from nanofn.model.params import ModelParams
from nanofn.request import SequenceId, TokenId
from nanofn.sampling.logprobs import MAX_ROWS, token_logprobs


def sampled_logprobs(
    logits: Tensor, token_ids: Tensor, starts: Sequence[RowStart]
) -> tuple[tuple[SequenceId, TokenLogprobs], ...]:
    """Report the new tokens of those rows that asked for it.

    Args:
        logits: [num_rows, vocab_size] fp32, as the model gave them.
        token_ids: [num_rows] integer.
        starts: The rows' owners.
    """
    places = [place for place, start in enumerate(starts) if start.sampling.logprobs is not None]
    if not places:
        return ()
    wanted = [starts[place].sampling.logprobs or 0 for place in places]
    found = _read(logits[places], token_ids[places].to(torch.int64), wanted)
    return tuple([(starts[place].sequence_id, each) for place, each in zip(places, found, strict=True)])


def prompt_logprobs(
    params: ModelParams, hidden: Tensor, tokens: Tensor, start: RowStart, first_position: int
) -> PromptLogprobs | None:
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
    num_top, found = start.sampling.prompt_logprobs or 0, list[TokenLogprobs]()
    for place in range(0, len(targets), MAX_ROWS):
        part = targets[place : place + MAX_ROWS]
        logits = compute_logits(params, hidden[place : place + len(part)])
        found += _read(logits, part, [num_top] * len(part))
    return PromptLogprobs(start.sequence_id, first_position + 1, tuple(found)) if found else None


def _read(logits: Tensor, token_ids: Tensor, wanted: list[int]) -> list[TokenLogprobs]:
    vocab_size = logits.shape[1]
    counts = [vocab_size if count < 0 else min(count, vocab_size) for count in wanted]
    logprob, rank, top_ids, top_logprobs = token_logprobs(logits, token_ids, max(counts))
    columns = token_ids.tolist(), logprob.tolist(), rank.tolist(), top_ids.tolist(), top_logprobs.tolist(), counts
    return [
        TokenLogprobs(
            TokenId(token_id), value, place, tuple(zip(map(TokenId, ids[:count]), values[:count], strict=True))
        )
        for token_id, value, place, ids, values, count in zip(*columns, strict=True)
    ]
