"""A fake executor whose K/V memory holds, for every slot, the exact prefix it was computed from.

It sees plans only, as a device would: rows, block-table deltas and entries. Plans run in launch order, as on one
stream: all of a plan's writes, then all of its reads. A wrong block table, a slot written twice, a block reused too
early or published too soon shows as a read that finds another prefix than its own.
"""

from collections import deque
from zlib import crc32

from nanofn.request import TokenId
from nanofn.state.effects import Started
from nanofn.state.engine_state import EngineState
from nanofn.state.step_plan import StepPlan, StepResult

VOCAB_SIZE = 7
EOS = TokenId(0)


def sampled_token(prefix: tuple[int, ...], child: int) -> TokenId:
    """The fake model: a token is a function of its prefix and its child, of nothing else."""
    return TokenId(crc32(repr((prefix, child)).encode()) % VOCAB_SIZE)


def expected_output(prompt, child, max_tokens, max_model_len, min_tokens, stop_token_ids):
    """What a sequence must produce: recompute everything, infinite memory."""
    tokens = list(prompt)
    while True:
        tokens.append(sampled_token(tuple(tokens), child))
        outputs = tokens[len(prompt) :]
        if tokens[-1] in stop_token_ids and len(outputs) > min_tokens:
            return outputs, "stop"
        if len(outputs) == max_tokens or len(tokens) == max_model_len:
            return outputs, "length"


class ShadowMismatchError(AssertionError):
    """A slot does not hold what the plan's reader needs."""


class ShadowExecutor:
    """Runs plans against the shadow memory; results wait in launch order."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.memory: dict[tuple[int, int], tuple[int, ...]] = {}
        self.tables: dict[int, dict[int, int]] = {}
        self.tokens: dict[int, list[int | None]] = {}
        self.child: dict[int, int] = {}
        self.results: deque[tuple[int, StepResult | None]] = deque()
        self.num_computed = 0

    def launch(self, state: EngineState, step_plan: StepPlan, known_tokens, *, fails: bool = False) -> None:
        """Run a plan that `plan` just made; `state` gives what a started row is set up with."""
        hits = {}
        for effect in step_plan.effects:
            if isinstance(effect, Started):
                sequence = state.running.get(effect.sequence_id)
                row = sequence.row
                self.tables[row] = {}
                self.tokens[row] = list(known_tokens(sequence.sequence_id))
                self.child[row] = sequence.child
                hits[row] = effect.num_cached_tokens // self.block_size
        for row, index, block_id in step_plan.new_blocks:
            self.tables[row][index] = block_id
            if index >= hits.get(row, 0):
                for offset in range(self.block_size):
                    self.memory.pop((block_id, offset), None)
        for entry in step_plan.entries:
            tokens = self.tokens[entry.row]
            for position in range(entry.first_position, entry.first_position + entry.num_tokens):
                slot = self._slot(entry.row, position)
                if slot in self.memory:
                    raise ShadowMismatchError(f"{slot} is written twice in one residency")
                self.memory[slot] = tuple(tokens[: position + 1])
        sampled = []
        for entry in step_plan.entries:
            tokens, end = self.tokens[entry.row], entry.first_position + entry.num_tokens
            for position in range(end):
                found = self.memory.get(self._slot(entry.row, position))
                if found != tuple(tokens[: position + 1]):
                    raise ShadowMismatchError(f"sequence {entry.sequence_id} reads {found} at {position} of {tokens}")
            self.num_computed += entry.num_tokens
            if entry.samples:
                token_id = sampled_token(tuple(tokens[:end]), self.child[entry.row])
                del tokens[end:]
                tokens.append(token_id)
                sampled.append(token_id)
        self.results.append((step_plan.plan_id, None if fails else StepResult(tuple(sampled), now_us=0)))

    def _slot(self, row: int, position: int) -> tuple[int, int]:
        return self.tables[row][position // self.block_size], position % self.block_size
