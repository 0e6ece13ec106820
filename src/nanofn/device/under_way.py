"""Steps under way on a GPU: between forward and sampler, and between launch and collect."""

import numpy as np
from attrs import frozen
from numpy.typing import NDArray
from torch import Tensor

from nanofn.device.decode_graphs import Bucket
from nanofn.device.read_logprobs import PromptReport, SampledReport
from nanofn.device.staging import Slot
from nanofn.request import Row


@frozen(eq=False)
class Forwarded:
    """A step whose tokens are yet to be chosen. Its logits stay where they are until the next step's forward.

    Attributes:
        slot: Where its tokens arrive.
        rows: Device rows of the entries that sample.
        positions: [num_rows] int32. Positions of the tokens being sampled.
        logits: [size, vocab_size], padded like the staged entries.
        places: Which of its outputs count: those of the entries that sample.
        bucket: Whose decode step it is; None where it prefills.
        prompt_logprobs: Of prompts.
    """

    slot: Slot
    rows: list[Row]
    positions: NDArray[np.int32]
    logits: Tensor
    places: slice | np.ndarray
    bucket: Bucket | None
    prompt_logprobs: tuple[PromptReport, ...] = ()


@frozen(eq=False)
class Pending:
    """A launched step.

    Attributes:
        slot: Where its tokens arrive.
        places: Which of its outputs count: those of the entries that sample.
        logprobs: Of sampled tokens, if anyone asked.
        prompt_logprobs: Of prompts.
    """

    slot: Slot
    places: slice | np.ndarray
    logprobs: SampledReport | None
    prompt_logprobs: tuple[PromptReport, ...]
