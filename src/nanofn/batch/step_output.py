"""StepOutput: what a device hands back for a plan."""

from collections.abc import Mapping
from types import MappingProxyType

from attrs import frozen

from nanofn.request import SequenceId, TokenId

NOBODY: Mapping[SequenceId, bytes] = MappingProxyType({})


@frozen
class PromptLogprobs:
    """Prompt tokens' log-probabilities.

    Attributes:
        sequence_id: Whose prompt.
        first_position: Position of the first token below, at least 1: nothing precedes the first one.
        records: One each, in order. See `record_type`.
    """

    sequence_id: SequenceId
    first_position: int
    records: tuple[bytes, ...]


@frozen
class StepOutput:
    """The results of one plan.

    Log-probabilities are natural logarithms under the model's own distribution, nothing adjusted or filtered.

    Attributes:
        token_ids: One per sampling entry, in entry order.
        logprobs: Of those sequences' new tokens that asked for them, a record each. See `record_type`.
        prompt_logprobs: The same for prompts that this plan went through.
    """

    token_ids: tuple[TokenId, ...]
    logprobs: Mapping[SequenceId, bytes] = NOBODY
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()
