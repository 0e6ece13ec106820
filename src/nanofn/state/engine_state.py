"""EngineState: everything the engine knows, as one value."""

from typing import Self

from attrs import field, frozen

from nanofn.config import Limits
from nanofn.request import PlanId, RequestId, Row, SequenceId
from nanofn.state.block_pool import BlockPool
from nanofn.state.chunked import Chunked
from nanofn.state.digest import Digest
from nanofn.state.persistent import Map
from nanofn.state.prefix_index import PrefixIndex
from nanofn.state.running import Running
from nanofn.state.sequence import Sequence
from nanofn.state.sorted_table import SortedTable
from nanofn.state.step_plan import PlanEntries, StepPlan


@frozen
class EngineState:
    """The state machine's state: no policy state, no clock, no output tokens beyond each unfinished block.

    Attributes:
        limits: The bounds.
        pool: Free blocks and reference counts.
        prefix_index: Published blocks.
        rows: Free device rows; the last one is given out next.
        waiting: Sequences without blocks by arrival number, preempted ones included.
        running: Sequences with a row, in admission order.
        by_request: Each live request's live sequences.
        in_flight: Plans without a result, oldest first.
        next_sequence_id: Arrival number of the next sequence.
        next_plan_id: Number of the next plan.
        num_steps: Calls of `plan` so far.
    """

    limits: Limits
    pool: BlockPool
    rows: tuple[Row, ...]
    prefix_index: PrefixIndex = PrefixIndex()
    waiting: SortedTable[SequenceId, Sequence] = field(default=SortedTable())
    running: Running = Running()
    by_request: Map[RequestId, tuple[SequenceId, ...]] = Map()
    in_flight: tuple[StepPlan, ...] = ()
    next_sequence_id: SequenceId = SequenceId(0)
    next_plan_id: PlanId = PlanId(0)
    num_steps: int = 0

    def launched(self, step_plan: StepPlan, running: Running, pool: BlockPool, prefix_index: PrefixIndex) -> Self:
        """The state with one more plan in flight. By position: `evolve` costs three times as much."""
        return type(self)(
            self.limits, pool, self.rows, prefix_index, self.waiting, running, self.by_request,
            (*self.in_flight, step_plan), self.next_sequence_id, PlanId(self.next_plan_id + 1), self.num_steps + 1,
        )  # fmt: skip

    def committed(
        self, waiting: SortedTable[SequenceId, Sequence], running: Running, prefix_index: PrefixIndex
    ) -> Self:
        """The state without the oldest plan in flight, whose results the arguments hold."""
        return type(self)(
            self.limits, self.pool, self.rows, prefix_index, waiting, running, self.by_request, self.in_flight[1:],
            self.next_sequence_id, self.next_plan_id, self.num_steps,
        )  # fmt: skip


def initial_state(limits: Limits) -> EngineState:
    """Build the state of an engine that has seen nothing."""
    rows = tuple(map(Row, reversed(range(limits.max_num_seqs))))
    return EngineState(limits=limits, pool=BlockPool(limits.num_blocks), rows=rows)


def find(state: EngineState, sequence_id: SequenceId) -> Sequence | None:
    """Look up a live sequence, running or waiting; None if it is not alive."""
    return state.running.get(sequence_id) or state.waiting.get(sequence_id)


def digests_being_written(state: EngineState) -> set[Digest]:
    """Collect the prefixes whose blocks plans in flight write: a sequence that needs one next had better wait for it.

    A block counts from the first of its tokens that is written, so that chunks that end inside a block are covered.
    """
    digests: set[Digest] = set()
    if state.limits.enable_prefix_caching:
        for plan in state.in_flight:
            digests |= digests_of(plan.entries, state.running, state.limits.block_size)
    return digests


def digests_of(entries: PlanEntries, running: Running, block_size: int) -> set[Digest]:
    """Collect the digests of the known full blocks that a plan's entries touch, as far as they are current."""
    rows = running.columns
    now = dict(zip(zip(rows.sequence_id, rows.epoch, strict=True), rows.chain, strict=True))
    digests: set[Digest] = set()
    columns = entries.sequence_id, entries.epoch, entries.first_position, entries.num_tokens
    for sequence_id, epoch, first_position, num_tokens in zip(*columns, strict=True):
        chain = now.get((sequence_id, epoch))
        if chain is not None and first_position // block_size < len(chain):
            digests |= digests_between(chain, first_position, num_tokens, block_size)
    return digests


def digests_between(chain: Chunked[Digest], first_position: int, num_tokens: int, block_size: int) -> set[Digest]:
    """Collect the digests of the full blocks that these positions touch."""
    last = min((first_position + num_tokens - 1) // block_size, len(chain) - 1)
    return {chain[index] for index in range(first_position // block_size, last + 1)}
