"""build: a StepPlan becomes a few flat arrays, ready for one upload."""

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from nanofn.request import Row
from nanofn.state.step_plan import StepPlan


@frozen(eq=False)
class StepBatch:
    """What a device needs to know of a step, besides what its tables hold already.

    Slots, positions and token ids are not here: the device works them out from its tables and these entries.

    Attributes:
        entries: [3, num_entries] int32: row, first position, number of tokens.
        sampling: [num_samples] int32: the entries that sample, ascending.
        new_blocks: [3, num_new_blocks] int32: row, index in its block table, block id.
        num_tokens: Tokens to compute.
        max_query_len: Most tokens of an entry.
        max_seq_len: Most tokens that an entry attends to: its first position plus its count.
    """

    entries: NDArray[np.int32]
    sampling: NDArray[np.int32]
    new_blocks: NDArray[np.int32]
    num_tokens: int
    max_query_len: int
    max_seq_len: int

    @property
    def sampled_positions(self) -> NDArray[np.int32]:
        """[num_samples] int32: position of the token that each entry of `sampling` samples."""
        positions: NDArray[np.int32] = self.entries[1] + self.entries[2]
        return positions[self.sampling]

    @property
    def sampled_rows(self) -> list[Row]:
        """Device row of each entry of `sampling`."""
        rows: list[Row] = self.entries[0, self.sampling].tolist()
        return rows

    @property
    def only_decodes(self) -> bool:
        """Whether every entry computes one token: the step of a captured decode graph."""
        return self.max_query_len == 1


def build(step_plan: StepPlan) -> StepBatch:
    """Turn a plan with entries into arrays.

    Args:
        step_plan: What `plan` returned.

    Returns:
        Arrays that share nothing with the plan and are not written again.
    """
    plan_entries = step_plan.entries
    entries = np.array([plan_entries.row, plan_entries.first_position, plan_entries.num_tokens], dtype=np.int32)
    new_blocks = np.array(step_plan.new_blocks, dtype=np.int32).reshape(-1, 3).T
    sampling = np.flatnonzero(plan_entries.samples).astype(np.int32)
    return StepBatch(
        entries=entries,
        sampling=sampling,
        new_blocks=new_blocks,
        num_tokens=int(entries[2].sum()),
        max_query_len=int(entries[2].max()),
        max_seq_len=int((entries[1] + entries[2]).max()),
    )
