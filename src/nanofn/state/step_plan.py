"""StepPlan: one step's work as a frozen value, and StepResult: what came of it."""

from collections.abc import Iterator, Sequence
from typing import Any, overload

from attrs import frozen

from nanofn.request import BlockId, PlanId, Row, SequenceId, TokenId
from nanofn.state.effects import PlanEffect


@frozen
class PlanEntry:
    """One sequence's part of a step.

    Attributes:
        sequence_id: Whose tokens.
        epoch: The sequence's epoch when planned; its computed tokens count only while that lasts.
        row: Its device row.
        first_position: Position of the first token to compute.
        num_tokens: How many consecutive tokens to compute, at least 1.
        samples: Whether a token is sampled, for position `first_position + num_tokens`.
    """

    sequence_id: SequenceId
    epoch: int
    row: Row
    first_position: int
    num_tokens: int
    samples: bool


@frozen
class PlanEntries(Sequence[PlanEntry]):
    """The entries of a plan in rank order, stored as columns so that an all-decode step builds none of them."""

    sequence_id: tuple[SequenceId, ...] = ()
    epoch: tuple[int, ...] = ()
    row: tuple[Row, ...] = ()
    first_position: tuple[int, ...] = ()
    num_tokens: tuple[int, ...] = ()
    samples: tuple[bool, ...] = ()

    def __len__(self) -> int:
        return len(self.sequence_id)

    @overload
    def __getitem__(self, index: int) -> PlanEntry: ...
    @overload
    def __getitem__(self, index: slice) -> "PlanEntries": ...
    def __getitem__(self, index: int | slice) -> "PlanEntry | PlanEntries":
        values: list[Any] = [column[index] for column in self.columns]
        return PlanEntries(*values) if isinstance(index, slice) else PlanEntry(*values)

    def __iter__(self) -> Iterator[PlanEntry]:
        return (PlanEntry(*values) for values in zip(*self.columns, strict=True))

    @property
    def columns(self) -> tuple[tuple[Any, ...], ...]:
        """The columns in the order of `PlanEntry`'s fields."""
        return self.sequence_id, self.epoch, self.row, self.first_position, self.num_tokens, self.samples


@frozen
class StepPlan:
    """What one step computes. It shares nothing mutable with the state it came from.

    Attributes:
        plan_id: Its number; None where there are no entries: nothing is launched and nothing is in flight.
        entries: Whose tokens, in rank order.
        new_blocks: (row, index, block) for every block-table entry that changes, those of started sequences included.
        effects: Started, Preempted, Refused and Finished (shed), in the order they happened.
    """

    plan_id: PlanId | None
    entries: PlanEntries
    new_blocks: tuple[tuple[Row, int, BlockId], ...]
    effects: tuple[PlanEffect, ...]


@frozen
class StepResult:
    """What an executor returns for a plan.

    Attributes:
        token_ids: One per sampling entry, in entry order.
        now_us: When it was read, in microseconds of the loop's clock.
    """

    token_ids: tuple[TokenId, ...]
    now_us: int
