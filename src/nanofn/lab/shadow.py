"""A fake executor whose K/V memory holds, for every slot, the exact prefix and the cache keys it was computed from.

It sees plans only, as a device would: rows, block-table deltas and entries. Plans run in launch order, as on one
stream: all of a plan's writes, then all of its reads. A wrong block table, a slot written twice, a block reused too
early or published too soon shows as a read that finds another prefix than its own.
"""

from collections import deque
from collections.abc import Callable, Sequence
from zlib import crc32

from nanofn.request import PlanId, Request, TokenId
from nanofn.state.effects import Started
from nanofn.state.engine_state import EngineState
from nanofn.state.step_plan import StepPlan, StepResult

VOCAB_SIZE = 7
EOS = TokenId(0)
Slot = tuple[int, int]
Held = tuple[tuple[tuple[str, str], ...], tuple[int, ...]]
"""What a slot holds: the cache keys and the prefix that its K/V was computed from."""
Sampler = Callable[[tuple[int, ...], int], TokenId]


def sampled_token(prefix: tuple[int, ...], child: int) -> TokenId:
    """The fake model: a token is a function of its prefix and its child, of nothing else."""
    return TokenId(crc32(repr((prefix, child)).encode()) % VOCAB_SIZE)


def expected_output(request: Request, child: int, max_model_len: int) -> tuple[list[int], str]:
    """What a sequence must produce, tokens and finish reason: recompute everything, infinite memory."""
    tokens: list[int] = list(request.prompt_token_ids)
    while True:
        tokens.append(sampled_token(tuple(tokens), child))
        outputs = tokens[request.num_prompt_tokens :]
        if tokens[-1] in request.stop_token_ids and len(outputs) > request.min_tokens:
            return outputs, "stop"
        if len(outputs) == request.max_tokens or len(tokens) == max_model_len:
            return outputs, "length"


class ShadowMismatchError(AssertionError):
    """A slot does not hold what the plan's reader needs."""


class ShadowExecutor:
    """Runs plans against the shadow memory; results wait in launch order."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.memory: dict[Slot, Held] = {}
        self.tables: dict[int, dict[int, int]] = {}
        self.tokens: dict[int, list[int]] = {}
        self.child: dict[int, int] = {}
        self.keys: dict[int, tuple[tuple[str, str], ...]] = {}
        self.results: deque[tuple[PlanId, StepResult | None]] = deque()
        self.num_computed = 0

    def fork(self) -> "ShadowExecutor":
        """Copy it, so that one state can go on in several ways."""
        other = ShadowExecutor(self.block_size)
        other.memory, other.child, other.results = dict(self.memory), dict(self.child), deque(self.results)
        other.tables = {row: dict(table) for row, table in self.tables.items()}
        other.tokens = {row: list(tokens) for row, tokens in self.tokens.items()}
        other.keys, other.num_computed = dict(self.keys), self.num_computed
        return other

    def launch(
        self,
        state: EngineState,
        step_plan: StepPlan,
        known_tokens: Callable[[int], Sequence[int]],
        *,
        fails: bool = False,
        sample: Sampler = sampled_token,
    ) -> None:
        """Run a plan that `plan` just made; `state` gives what a started row is set up with."""
        self._set_up(state, step_plan, known_tokens)
        self._write(step_plan)
        token_ids = self._read_and_sample(step_plan, sample)
        assert step_plan.plan_id is not None
        self.results.append((step_plan.plan_id, None if fails else StepResult(token_ids, now_us=0)))

    def _set_up(self, state: EngineState, step_plan: StepPlan, known_tokens: Callable[[int], Sequence[int]]) -> None:
        """Give started rows their tokens and every row its new blocks; what a new block held is gone."""
        num_hits: dict[int, int] = {}
        for effect in step_plan.effects:
            if isinstance(effect, Started):
                sequence = state.running.get(effect.sequence_id)
                assert sequence is not None
                assert sequence.row is not None
                self.tables[sequence.row] = {}
                self.tokens[sequence.row] = list(known_tokens(sequence.sequence_id))
                self.child[sequence.row] = sequence.child
                self.keys[sequence.row] = sequence.request.cache_keys
                num_hits[sequence.row] = effect.num_cached_tokens // self.block_size
        for row, index, block_id in step_plan.new_blocks:
            self.tables[row][index] = block_id
            if index >= num_hits.get(row, 0):
                for offset in range(self.block_size):
                    self.memory.pop((block_id, offset), None)

    def _write(self, step_plan: StepPlan) -> None:
        """Store every computed position's prefix, each slot once per residency."""
        for entry in step_plan.entries:
            tokens = self.tokens[entry.row]
            for position in range(entry.first_position, entry.first_position + entry.num_tokens):
                slot = self._slot(entry.row, position)
                if slot in self.memory:
                    raise ShadowMismatchError(f"{slot} is written twice in one residency")
                if position >= len(tokens):
                    raise ShadowMismatchError(f"sequence {entry.sequence_id} has no input token at {position}")
                self.memory[slot] = self.keys[entry.row], tuple(tokens[: position + 1])

    def _read_and_sample(self, step_plan: StepPlan, sample: Sampler) -> tuple[TokenId, ...]:
        """Check that every position up to the last computed one holds its own prefix; sample where asked to."""
        sampled: list[TokenId] = []
        for entry in step_plan.entries:
            tokens, end = self.tokens[entry.row], entry.first_position + entry.num_tokens
            for position in range(end):
                found = self.memory.get(self._slot(entry.row, position))
                if found != (self.keys[entry.row], tuple(tokens[: position + 1])):
                    raise ShadowMismatchError(f"sequence {entry.sequence_id} reads {found} at {position} of {tokens}")
            self.num_computed += entry.num_tokens
            if entry.samples:
                if end < len(tokens):
                    raise ShadowMismatchError(f"sequence {entry.sequence_id} samples at {end}, known are {tokens}")
                token_id = sample(tuple(tokens), self.child[entry.row])
                tokens.append(token_id)
                sampled.append(token_id)
        return tuple(sampled)

    def _slot(self, row: int, position: int) -> Slot:
        return self.tables[row][position // self.block_size], position % self.block_size
