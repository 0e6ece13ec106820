"""Effects: what a transition did, for the loop, the policy and the log."""

from typing import Literal

from attrs import frozen

from nanofn.request import FinishReason, Refusal, RequestId, SequenceId, TokenId

RejectReason = Literal["repeated_request_id", "empty_prompt", "prompt_too_long", "max_tokens", "n"]


@frozen
class Admitted:
    """A request's sequences wait.

    Attributes:
        request_id: The request.
        sequence_ids: One per child, in child order.
    """

    request_id: RequestId
    sequence_ids: tuple[SequenceId, ...]


@frozen
class Rejected:
    """A request can never be served; the state is as before.

    Attributes:
        request_id: The request.
        reason: What is wrong.
        needed: The number it asks for.
        available: The limit.
    """

    request_id: RequestId
    reason: RejectReason
    needed: int
    available: int


@frozen
class Started:
    """A waiting sequence got a row and runs, with `num_cached_tokens` found in the prefix index."""

    sequence_id: SequenceId
    num_cached_tokens: int


@frozen
class Preempted:
    """A running sequence lost its row and blocks and waits again; `num_computed_tokens` are to be computed anew."""

    sequence_id: SequenceId
    num_computed_tokens: int


@frozen
class Refused:
    """A grant, preemption or shedding in a decision had no effect.

    `unknown`: not alive, or not running where it must be. `repeated`: mentioned before. `preempted`: preempted in this
    call. `empty`: fewer than 0 tokens. `awaits_result`: needs the result of a plan in flight first. `pending_prefix`:
    its next block is being written by another sequence. `token_budget`, `max_num_seqs`, `blocks`: that ran out.
    `behind`: a waiting grant before it did not fit, and the decision does not skip.
    """

    sequence_id: SequenceId
    refusal: Refusal


@frozen
class TokensCommitted:
    """Output tokens became known; columns in entry order. `num_tokens` counts known ones now, prompts included."""

    sequence_ids: tuple[SequenceId, ...]
    token_ids: tuple[TokenId, ...]
    num_tokens: tuple[int, ...]


@frozen
class Finished:
    """A sequence ended and holds nothing any more.

    Attributes:
        sequence_id: The sequence.
        finish_reason: Why.
        stop_token_id: The token that ended it, for reason "stop" by a token.
        num_output_tokens: Its output's length; committed tokens beyond it are cut.
    """

    sequence_id: SequenceId
    finish_reason: FinishReason
    stop_token_id: TokenId | None
    num_output_tokens: int


@frozen
class PrefixCacheCleared:
    """Every published block was forgotten."""

    num_blocks: int


PlanEffect = Started | Preempted | Refused | Finished
