"""Masks: which token ids rows may choose next."""

from collections.abc import Sequence

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from nanofn.request import Row

WORD_BITS = 32


def num_words(vocab_size: int) -> int:
    """Words of a mask. Kernels are compiled ahead for it, so there is one rule."""
    return -(-vocab_size // WORD_BITS)


@frozen(eq=False)
class Masks:
    """A mask for each row that follows a grammar. A row without one may get any id.

    Attributes:
        rows: Their device rows.
        words: [num_rows, num_words] uint32, contiguous: bit i % 32 of word i // 32 allows id i. Its memory may be written
            again once the call that it was passed to is over.
    """

    rows: tuple[Row, ...]
    words: NDArray[np.uint32]

    def places_of(self, rows: Sequence[Row]) -> NDArray[np.int32]:
        """Say which mask each of some rows has: [num_rows] int32, -1 for none."""
        places = {row: place for place, row in enumerate(self.rows)}
        return np.array([places.get(row, -1) for row in rows], dtype=np.int32)


NO_MASKS = Masks((), np.zeros((0, 0), dtype=np.uint32))
