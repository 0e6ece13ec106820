"""Sequence: the engine's record of one child of a request."""

from attrs import frozen

from nanofn.request import BlockId, Hint, Request, Row, SequenceId
from nanofn.state.chunked import Chunked
from nanofn.state.digest import Digest


@frozen
class Sequence:
    """One child of a request, waiting or running. Waiting ones hold no row, no block and nothing computed.

    Attributes:
        sequence_id: Arrival number.
        request: What was asked for, shared with its siblings.
        child: Which of the request's `n`.
        num_prompt_tokens: Length of the prompt.
        max_num_tokens: Length at which it ends: prompt plus `max_tokens`, or `max_model_len`.
        num_tokens: Known tokens: prompt and committed output.
        epoch: Number of preemptions so far. A plan's entry counts as computed only in the epoch it was planned in.
        row: Its device row while running.
        block_table: Its blocks in order, exactly enough for `num_computed_tokens`.
        num_computed_tokens: Tokens whose K/V is in place once every planned step has run.
        hint: What a predictor said last.
        first_output_us: When its first output token was committed.
        last_output_us: When its latest output token was committed.
        last_output_step: Number of plans made before its latest output token, or its arrival, was recorded.
        chain: Digest of each full block of known tokens; empty without prefix caching.
        tail: Known tokens after the last full block, packed; empty without prefix caching.
    """

    sequence_id: SequenceId
    request: Request
    child: int
    num_prompt_tokens: int
    max_num_tokens: int
    num_tokens: int
    epoch: int = 0
    row: Row | None = None
    block_table: Chunked[BlockId] = Chunked()
    num_computed_tokens: int = 0
    hint: Hint | None = None
    first_output_us: int | None = None
    last_output_us: int | None = None
    last_output_step: int = 0
    chain: Chunked[Digest] = Chunked()
    tail: bytes = b""

    @property
    def num_preemptions(self) -> int:
        """How often it lost its blocks."""
        return self.epoch

    @property
    def num_output_tokens(self) -> int:
        """Committed output tokens."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def num_placeholders(self) -> int:
        """Output tokens that plans in flight will sample for it."""
        return max(self.num_computed_tokens - self.num_tokens + 1, 0) if self.row is not None else 0

    @property
    def is_prefill(self) -> bool:
        """Whether more than its last token still has to be computed."""
        return self.num_tokens - self.num_computed_tokens > 1

    @property
    def awaits_result(self) -> bool:
        """Whether nothing can be planned for it before a plan in flight is committed.

        True where a placeholder stands and it already reaches the final length.
        """
        return self.num_computed_tokens >= max(self.num_tokens, self.max_num_tokens - 1)

    @property
    def num_remaining_tokens(self) -> int:
        """Tokens that a plan could compute for it now: known ones and one placeholder, less the computed ones."""
        return 0 if self.awaits_result else max(self.num_tokens - self.num_computed_tokens, 1)


def max_hits(sequence: Sequence, block_size: int) -> int:
    """Count the blocks that may come from the prefix index: the last known token is computed in any case."""
    if not sequence.request.reads_prefix_cache:
        return 0
    return min((sequence.num_tokens - 1) // block_size, len(sequence.chain))
