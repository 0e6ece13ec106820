"""RowSampling: what a device row must know to choose its tokens. Numbers and ids; texts were encoded before."""

from attrs import frozen

from nanofn.request import TokenId


@frozen
class RowSampling:
    """How one row's tokens are chosen. The defaults change nothing.

    Attributes:
        temperature: Below 1e-5 means greedy.
        top_k: Keep this many ids; 0 or less is off.
        top_p: Keep the likeliest ids of this mass; 1 is off.
        min_p: Keep ids at least this likely relative to the likeliest; 0 is off.
        repetition_penalty: Divides positive and multiplies negative logits of ids seen in prompt or output; 1 is off.
        presence_penalty: Subtracted from the logits of ids in the output; 0 is off.
        frequency_penalty: Subtracted once for each time an id is in the output; 0 is off.
        logit_bias: (id, what is added to its logit).
        allowed_token_ids: The only ids that may be chosen; None is all.
        bad_words: Runs of ids that may not appear in the output.
        min_tokens: Output tokens before any of `end_token_ids` may be chosen.
        end_token_ids: What would end the sequence.
        logprobs: How many likeliest ids to report at each position, besides the chosen one; -1 is all, None nothing.
        prompt_logprobs: The same for the prompt.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[TokenId, float], ...] = ()
    allowed_token_ids: tuple[TokenId, ...] | None = None
    bad_words: tuple[tuple[TokenId, ...], ...] = ()
    min_tokens: int = 0
    end_token_ids: tuple[TokenId, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    @property
    def filters(self) -> bool:
        """Whether top-k, top-p or min-p is on."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    @property
    def penalises(self) -> bool:
        """Whether a penalty is on."""
        penalties = self.repetition_penalty, self.presence_penalty, self.frequency_penalty
        return penalties != (1.0, 0.0, 0.0)
