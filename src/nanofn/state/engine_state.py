"""EngineState: everything the engine knows, as one value."""

from attrs import field, frozen

from nanofn.config import Limits
from nanofn.request import PlanId, RequestId, Row, SequenceId
from nanofn.state.block_pool import BlockPool
from nanofn.state.digest import Digest
from nanofn.state.persistent import Map
from nanofn.state.prefix_index import PrefixIndex
from nanofn.state.running import Running
from nanofn.state.sequence import Sequence
from nanofn.state.sorted_table import SortedTable
from nanofn.state.step_plan import StepPlan


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
    waiting: SortedTable[Sequence] = field(default=SortedTable())
    running: Running = Running()
    by_request: Map[RequestId, tuple[SequenceId, ...]] = Map()
    in_flight: tuple[StepPlan, ...] = ()
    next_sequence_id: SequenceId = SequenceId(0)
    next_plan_id: PlanId = PlanId(0)
    num_steps: int = 0


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
            for entry in plan.entries:
                sequence = state.running.get(entry.sequence_id)
                if sequence is not None and sequence.epoch == entry.epoch:
                    digests |= digests_between(
                        sequence, entry.first_position, entry.num_tokens, state.limits.block_size
                    )
    return digests


def digests_between(sequence: Sequence, first_position: int, num_tokens: int, block_size: int) -> set[Digest]:
    """Collect the digests of the known full blocks that these positions touch."""
    last = min((first_position + num_tokens - 1) // block_size, len(sequence.chain) - 1)
    return {sequence.chain[index] for index in range(first_position // block_size, last + 1)}
