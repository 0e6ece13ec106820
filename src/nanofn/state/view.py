"""View: what a policy sees. Read-only, built in O(1), computed where it is looked at."""

from collections.abc import Callable, Iterator, Sequence as AbstractSequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar, cast, overload

from attrs import frozen

from nanofn.config import Limits, blocks_for
from nanofn.request import SequenceId
from nanofn.state.block_pool import num_freed
from nanofn.state.digest import Digest
from nanofn.state.engine_state import EngineState, digests_being_written
from nanofn.state.prefix_index import match
from nanofn.state.sequence import Sequence, max_hits

T = TypeVar("T")


def _fact(get: Callable[["SequenceView"], T], doc: str) -> T:
    """Make a property in one line. A type checker and an editor see an attribute of the value's own type."""
    return cast(T, property(get, doc=doc))


class Prospect(NamedTuple):
    """What a grant made now would do.

    Attributes:
        num_cached_tokens: Tokens it would find in the prefix index.
        num_tokens: Tokens it would compute.
        num_blocks: Free blocks it would use, hits among free cached blocks included.
        next_digest: See `SequenceView.next_digest`.
    """

    num_cached_tokens: int
    num_tokens: int
    num_blocks: int
    next_digest: Digest | None


@frozen(eq=False)
class SequenceView:
    """One live sequence as a policy may see it: counts and the caller's facts, no token contents.

    Attributes:
        state: The state it was taken from. Policies use the properties below instead.
        sequence: The record. Policies use the properties below instead.
    """

    state: EngineState
    sequence: Sequence

    # Facts of the request.
    sequence_id = _fact(lambda view: view.sequence.sequence_id, "Arrival number.")
    request_id = _fact(lambda view: view.sequence.request.request_id, "The request it is a child of.")
    child = _fact(lambda view: view.sequence.child, "Which of the request's n.")
    n = _fact(lambda view: view.sequence.request.n, "How many siblings it has, itself included.")
    num_prompt_tokens = _fact(lambda view: view.sequence.request.num_prompt_tokens, "Prompt length.")
    max_tokens = _fact(lambda view: view.sequence.request.max_tokens, "Most output tokens.")
    arrival_us = _fact(lambda view: view.sequence.request.arrival_us, "When it arrived.")
    priority = _fact(lambda view: view.sequence.request.priority, "The caller's priority.")
    client = _fact(lambda view: view.sequence.request.client, "Whom to account the service to.")
    ttft_slo_us = _fact(lambda view: view.sequence.request.ttft_slo_us, "Wanted time to first token.")
    tpot_slo_us = _fact(lambda view: view.sequence.request.tpot_slo_us, "Wanted time per output token.")
    deadline_us = _fact(lambda view: view.sequence.request.deadline_us, "Wanted time of completion.")
    tags = _fact(lambda view: view.sequence.request.tags, "(name, value) pairs of the caller.")

    # Counts.
    num_tokens = _fact(lambda view: view.sequence.num_tokens, "Known tokens.")
    num_output_tokens = _fact(lambda view: view.sequence.num_output_tokens, "Committed output tokens.")
    num_computed_tokens = _fact(lambda view: view.sequence.num_computed_tokens, "Computed once plans ran.")
    num_placeholders = _fact(lambda view: view.sequence.num_placeholders, "Tokens that plans will sample.")
    num_preemptions = _fact(lambda view: view.sequence.num_preemptions, "How often it lost its blocks.")
    num_blocks = _fact(lambda view: len(view.sequence.block_table), "Blocks it holds.")
    is_running = _fact(lambda view: view.sequence.row is not None, "Whether it holds a row.")
    is_prefill = _fact(lambda view: view.sequence.is_prefill, "Whether more than its last token is left.")
    first_output_us = _fact(lambda view: view.sequence.first_output_us, "Time of its first output token.")
    last_output_us = _fact(lambda view: view.sequence.last_output_us, "Time of its latest output token.")
    chain = _fact(lambda view: view.sequence.chain, "Opaque digests of its full blocks: equal means shared.")

    hint = _fact(lambda view: view.sequence.hint, "What a predictor said last.")
    steps_since_output = _fact(
        lambda view: view.state.num_steps - view.sequence.last_output_step,
        "Plans made since its latest output token, or its arrival.",
    )
    num_remaining_tokens = _fact(
        lambda view: view.sequence.num_remaining_tokens,
        "Tokens a grant could compute now, before any prefix hit; 0 while it awaits a result.",
    )

    @property
    def num_cached_tokens(self) -> int:
        """Tokens that a grant made now would find in the prefix index; valid for this view only."""
        return self.prospect().num_cached_tokens

    @property
    def next_digest(self) -> Digest | None:
        """Prefix whose block a grant would write first, where another sequence could share it; None otherwise.

        Of several waiting sequences with one `next_digest`, a plan starts the first and lets the others wait for it.
        """
        return self.prospect().next_digest

    @property
    def is_prefix_pending(self) -> bool:
        """Whether a plan in flight is writing the block this waiting sequence needs next."""
        digest = self.next_digest
        return digest is not None and not self.is_running and digest in digests_being_written(self.state)

    @property
    def is_in_flight(self) -> bool:
        """Whether a plan in flight names it. A preempted sequence cannot start again before that is committed."""
        return any(self.sequence.sequence_id in step_plan.entries.sequence_id for step_plan in self.state.in_flight)

    @property
    def num_reclaimable_blocks(self) -> int:
        """Blocks that its preemption would free now: those nobody else holds."""
        return num_freed(self.state.pool, (self.sequence.block_table,))

    def blocks_needed(self, num_tokens: int) -> int:
        """Count the free blocks that a grant of `num_tokens` would use, hits among free cached blocks included."""
        return self.prospect(num_tokens).num_blocks

    def prospect(self, num_tokens: int | None = None) -> Prospect:
        """Tell what a grant of `num_tokens`, or of all that remain, would find and use: one look-up for all of it."""
        sequence, block_size = self.sequence, self.state.limits.block_size
        if self.is_running:
            start, reads = sequence.num_computed_tokens, sequence.request.reads_prefix_cache
            wanted = sequence.num_remaining_tokens if num_tokens is None else num_tokens
            num_blocks = blocks_for(start + wanted, block_size) - len(sequence.block_table)
            place, limit = start // block_size, len(sequence.chain) if reads else 0
            next_digest = sequence.chain[place] if place < limit else None
            return Prospect(0, wanted, num_blocks, next_digest)
        limit = max_hits(sequence, block_size)
        hits = match(self.state.prefix_index, sequence.chain, limit)
        wanted = sequence.num_tokens - len(hits) * block_size if num_tokens is None else num_tokens
        num_blocks = blocks_for(wanted, block_size)
        if hits:
            stamp_of = self.state.pool.stamp_of
            num_blocks += sum([stamp_of(block_id) is not None for block_id in hits])
        next_digest = sequence.chain[len(hits)] if len(hits) < limit else None
        return Prospect(len(hits) * block_size, wanted, num_blocks, next_digest)


@frozen(eq=False)
class SequenceViews(AbstractSequence[SequenceView]):
    """Some sequences of a state, each built when it is looked at.

    Attributes:
        state: The state they live in.
        is_running: Whether these are the running ones, in admission order, or the waiting ones, in arrival order.
    """

    state: EngineState
    is_running: bool

    def __len__(self) -> int:
        return len(self.state.running) if self.is_running else len(self.state.waiting)

    def __iter__(self) -> Iterator[SequenceView]:
        records = iter(self.state.running) if self.is_running else self.state.waiting.values()
        return (SequenceView(self.state, record) for record in records)

    @overload
    def __getitem__(self, index: int) -> SequenceView: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[SequenceView, ...]: ...
    def __getitem__(self, index: int | slice) -> SequenceView | tuple[SequenceView, ...]:
        if isinstance(index, slice):
            return tuple(islice(self, *index.indices(len(self)))) if (index.step or 1) > 0 else tuple(self)[index]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        if self.is_running:
            return SequenceView(self.state, self.state.running[index])
        return next(islice(self, index % len(self), None))

    @property
    def sequence_ids(self) -> tuple[SequenceId, ...]:
        """Ids in order, without a view for each: free for the running ones."""
        waiting = self.state.waiting
        return self.state.running.sequence_id if self.is_running else tuple([SequenceId(key) for key, _ in waiting])

    @property
    def num_remaining_tokens(self) -> tuple[int, ...]:
        """Tokens that a grant could compute now for each, before any prefix hit, without a view for each."""
        if self.is_running:
            return self.state.running.columns.num_remaining_tokens
        return tuple([sequence.num_tokens for sequence in self.state.waiting.values()])

    @property
    def decodes(self) -> tuple[tuple[SequenceId, int], ...] | None:
        """Running ones: a grant of one token to each, if each has just one left that can be planned; None otherwise."""
        return self.state.running.decodes if self.is_running else None

    def get(self, sequence_id: SequenceId) -> SequenceView | None:
        """Look up one of them by id."""
        source = self.state.running if self.is_running else self.state.waiting
        record = source.get(sequence_id)
        return None if record is None else SequenceView(self.state, record)


@frozen(eq=False)
class View:
    """What a policy sees when it decides.

    Attributes:
        state: The state. Policies use the properties below instead.
        now_us: Time of the decision, in microseconds of the loop's clock.
        news: Effects since the policy last decided, in order.
        step_cost: Predicts a step's microseconds from (prefill tokens, decode sequences, context tokens), if known.
    """

    state: EngineState
    now_us: int
    news: tuple[Any, ...] = ()
    step_cost: Callable[[int, int, int], int] | None = None

    @property
    def running(self) -> SequenceViews:
        """Running sequences in admission order."""
        return SequenceViews(self.state, is_running=True)

    @property
    def waiting(self) -> SequenceViews:
        """Waiting sequences in arrival order; lazy, so that the first few cost the same however many wait."""
        return SequenceViews(self.state, is_running=False)

    @property
    def num_waiting(self) -> int:
        """How many wait."""
        return self.state.waiting.size

    @property
    def limits(self) -> Limits:
        """The bounds."""
        return self.state.limits

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be allocated, cached ones included."""
        return self.state.pool.num_free

    @property
    def num_plans_in_flight(self) -> int:
        """Plans without a result."""
        return len(self.state.in_flight)
