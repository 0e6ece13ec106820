"""Prefill and mixed steps by number of tokens: small ones, and those that fill the budget, are captured at their second use.

Launched one by one, the kernels of a small step keep the host busy for many times what they keep the GPU busy.
"""

from functools import partial
from itertools import product

from attrs import frozen
from torch import Tensor

from nanofn.batch.device_entries import num_columns
from nanofn.config import Limits
from nanofn.device.second_use import SecondUse
from nanofn.device.step_memory import StepMemory
from nanofn.model.params import ModelParams
from nanofn.model.prefill import Layer, prefill

TOKEN_UNIT = 16
"""Tokens are padded to a multiple of this: products stay aligned, and a compiled function sees no size of 1."""

SIZES = (*range(32, 257, 32), *range(320, 513, 64), *range(640, 1025, 128), *range(1280, 2049, 256))
"""Numbers of tokens that small steps are padded to."""


def capture_sizes(most: int) -> list[int]:
    """List the numbers of tokens that captured steps are padded to, where a step has at most so many."""
    return [size for size in sorted({*SIZES, most}) if size <= most and size % TOKEN_UNIT == 0]


def capture_shapes(limits: Limits) -> list[tuple[int, int]]:
    """List the numbers of tokens and of columns of chunks that steps may be captured with."""
    columns = sorted({num_columns(1, limits.max_num_seqs), num_columns(limits.max_num_seqs, limits.max_num_seqs)})
    return list(product(capture_sizes(limits.max_num_batched_tokens), columns))


def capture_size(num_tokens: int, most: int) -> int | None:
    """Choose what a step is padded to; None where it is not captured, being neither small nor as large as can be."""
    if SIZES[-1] < num_tokens < most:
        return None
    return next((size for size in capture_sizes(most) if size >= num_tokens), None)


@frozen(eq=False)
class PrefillGraphs:
    """The steps of one engine.

    Attributes:
        params: The weights.
        memory: What all steps share.
        limits: The bounds.
        layer: `prefill_layer`, or what a compiler made of it.
        graphs: By tokens and columns.
    """

    params: ModelParams
    memory: StepMemory
    limits: Limits
    layer: Layer
    graphs: SecondUse

    def run(self, chunks: Tensor, num_tokens: int) -> Tensor:
        """Compute a step.

        Args:
            chunks: [3, num_columns] int32, the same memory for the same number of columns.
            num_tokens: Without padding.

        Returns:
            [at least num_tokens, hidden_size] the weights' dtype. A captured step's result lasts until the next step.

        Mutates:
            The K/V cache: the step's slots.
        """
        size = capture_size(num_tokens, self.limits.max_num_batched_tokens) if self.graphs.captures else None
        if size is None:
            return _prefill(self.params, self.memory, self.layer, chunks, -(-num_tokens // TOKEN_UNIT) * TOKEN_UNIT)
        work = partial(_prefill, self.params, self.memory, self.layer, chunks, size)
        return self.graphs.run((size, chunks.shape[1]), work)


def _prefill(params: ModelParams, memory: StepMemory, layer: Layer, chunks: Tensor, num_tokens: int) -> Tensor:
    """Not a method: graphs hold it, and in a circle with their owner they would outlive it until Python collects."""
    tables = memory.tables
    return prefill(
        params, chunks, num_tokens, tables.tokens, tables.block_table, memory.kv_cache, memory.cos_sin, layer
    )
