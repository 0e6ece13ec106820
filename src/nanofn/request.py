"""What a caller asked for, as the core sees it: counts, token ids and facts for policies, no text and no sampling."""

from typing import Literal, NewType

from attrs import frozen

RequestId = NewType("RequestId", int)
SequenceId = NewType("SequenceId", int)
"""Arrival number: one per child of a request, never reused, so a smaller id arrived earlier."""
PlanId = NewType("PlanId", int)
BlockId = NewType("BlockId", int)
Row = NewType("Row", int)
TokenId = NewType("TokenId", int)

FinishReason = Literal["stop", "length", "abort", "error"]
"""Why a sequence ended. `abort` covers aborted and shed; `error` appears in outputs only, the core never gives it."""

Refusal = Literal[
    "unknown",
    "repeated",
    "preempted",
    "empty",
    "awaits_result",
    "pending_prefix",
    "token_budget",
    "max_num_seqs",
    "blocks",
    "behind",
]
"""Why a grant got no tokens: see `Refused` in `nanofn.state.effects`."""

Hint = int | float | tuple[int | float, ...]
"""What a predictor told a policy about a sequence, such as an expected output length. The core only carries it."""


@frozen
class Request:
    """One item of a call, shared by its `n` sequences.

    Attributes:
        request_id: Chosen by the loop, unique among live requests.
        prompt_token_ids: At least one.
        max_tokens: Most output tokens of each child, at least 1.
        min_tokens: Output tokens that must precede a token that may end the sequence.
        n: Number of children, each a sequence of its own.
        stop_token_ids: Ids that end a sequence, EOS included unless the caller ignores it.
        cache_keys: Typed (kind, value) pairs that a cached prefix must share, such as ("salt", "tenant-7").
        reads_prefix_cache: False where every prompt position must be computed (prompt logprobs).
        arrival_us: When it arrived, in microseconds of the loop's clock. Copied, never compared.
        priority: For policies; the core ignores it, as it does all that follow.
        client: Whom to account the service to.
        ttft_slo_us: Wanted time to first token.
        tpot_slo_us: Wanted time per output token.
        deadline_us: Wanted time of completion.
        tags: Anything else, as (name, value) pairs.
    """

    request_id: RequestId
    prompt_token_ids: tuple[TokenId, ...]
    max_tokens: int = 256
    min_tokens: int = 0
    n: int = 1
    stop_token_ids: tuple[TokenId, ...] = ()
    cache_keys: tuple[tuple[str, str], ...] = ()
    reads_prefix_cache: bool = True
    arrival_us: int = 0
    priority: int = 0
    client: str = ""
    ttft_slo_us: int | None = None
    tpot_slo_us: int | None = None
    deadline_us: int | None = None
    tags: tuple[tuple[str, str], ...] = ()

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.prompt_token_ids)
