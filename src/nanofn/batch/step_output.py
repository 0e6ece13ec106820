"""StepOutput: what a device hands back for a plan."""

from attrs import frozen

from nanofn.request import SequenceId, TokenId


@frozen
class TokenLogprobs:
    """How likely a position's token was, and which ones were likelier.

    Attributes:
        token_id: The token that stands there.
        logprob: Its natural log-probability under the model's own distribution, nothing adjusted or filtered.
        rank: 1 for the likeliest id; otherwise 1 plus the number of likelier ones.
        top: (id, logprob) of the likeliest ids, likeliest first.
    """

    token_id: TokenId
    logprob: float
    rank: int
    top: tuple[tuple[TokenId, float], ...]


@frozen
class PromptLogprobs:
    """Prompt tokens' log-probabilities.

    Attributes:
        sequence_id: Whose prompt.
        first_position: Position of the first token below, at least 1: nothing precedes the first one.
        tokens: One each, in order.
    """

    sequence_id: SequenceId
    first_position: int
    tokens: tuple[TokenLogprobs, ...]


@frozen
class StepOutput:
    """The results of one plan.

    Attributes:
        token_ids: One per sampling entry, in entry order.
        logprobs: Log-probabilities of those sequences' new tokens that asked for them.
        prompt_logprobs: The same for prompts that this plan went through.
    """

    token_ids: tuple[TokenId, ...]
    logprobs: tuple[tuple[SequenceId, TokenLogprobs], ...] = ()
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()
