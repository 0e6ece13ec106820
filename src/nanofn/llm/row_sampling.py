"""From sampling parameters to what a device row gets: texts become ids."""

from collections.abc import Callable, Sequence

from nanofn.batch.row_sampling import RowSampling
from nanofn.request import Request, TokenId
from nanofn.sampling.params import SamplingParams
from nanofn_kernels.adjust import LARGEST


def row_sampling(
    params: SamplingParams, request: Request, vocab_size: int, encode: Callable[[str], Sequence[int]]
) -> RowSampling:
    """Say how a request's tokens are chosen.

    Args:
        params: Checked.
        request: Knows what ends it.
        vocab_size: Ids that there are.
        encode: Text to token ids, with no special ones added.
    """
    # The device counts in 32 and 64 bits: what is beyond them means the most that it can do.
    return RowSampling(
        temperature=min(params.temperature, LARGEST),
        top_k=min(params.top_k, vocab_size),
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=min(max(params.repetition_penalty, 1 / LARGEST), LARGEST),
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        logit_bias=tuple(
            [(TokenId(place), min(max(amount, -LARGEST), LARGEST)) for place, amount in params.logit_bias or ()]
        ),
        allowed_token_ids=None if params.allowed_token_ids is None else tuple(map(TokenId, params.allowed_token_ids)),
        bad_words=_bad_words(params.bad_words or (), encode),
        min_tokens=params.min_tokens,
        end_token_ids=request.stop_token_ids,
        logprobs=params.logprobs,
        prompt_logprobs=params.prompt_logprobs,
    )


def _bad_words(words: Sequence[str], encode: Callable[[str], Sequence[int]]) -> tuple[tuple[TokenId, ...], ...]:
    """Encode each word as it stands at the beginning of a text and after a blank, which are different tokens."""
    texts = [text for word in words for text in (word.lstrip(" "), " " + word.lstrip(" "))]
    found = dict.fromkeys([tuple(map(TokenId, encode(text))) for text in texts])
    return tuple([token_ids for token_ids in found if token_ids])
