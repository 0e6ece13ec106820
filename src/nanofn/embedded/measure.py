"""How well a model knows texts it has not seen, in bits per byte, so that vocabularies can be compared."""

import math
from collections.abc import Callable, Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from nanofn.embedded.dense import dense_logits
from nanofn.embedded.markup import END_OF_TEXT, SPECIAL_TOKENS
from nanofn.model.params import ModelParams

WINDOW = 1024
"""Most tokens that a prediction is made from; longer texts are parted."""

ROWS_AT_ONCE = 32
PADDING = -100
"""The target that `cross_entropy` leaves out."""


def num_bytes(text: str) -> int:
    """Count the bytes of a text in UTF-8, the names of special tokens apart."""
    for token in SPECIAL_TOKENS:
        text = text.replace(token, "")
    return len(text.encode())


@torch.inference_mode()
def bits_per_byte(params: ModelParams, encode: Callable[[str], Sequence[int]], texts: Iterable[str]) -> float:
    """Measure the mean cost of a text's bytes. The end token of a text is not counted.

    Args:
        params: Weights, on any device.
        encode: Text to ids, special tokens by name.
        texts: At least one byte between them. Each is predicted from an end token on, and alone.
    """
    bare = [text.removesuffix(END_OF_TEXT) for text in texts]
    (start,) = encode(END_OF_TEXT)
    windows = sorted((window for text in bare for window in _windows([start, *encode(text)])), key=len)
    device = params.embedding.device
    nats = 0.0
    for first in range(0, len(windows), ROWS_AT_ONCE):
        rows = windows[first : first + ROWS_AT_ONCE]
        longest = max(map(len, rows)) - 1
        inputs = torch.tensor([[*row[:-1], *[start] * (longest - len(row) + 1)] for row in rows], device=device)
        targets = torch.tensor([[*row[1:], *[PADDING] * (longest - len(row) + 1)] for row in rows], device=device)
        nats += _cost(dense_logits(params, inputs), targets)
    return nats / math.log(2) / sum(map(num_bytes, bare))


def _windows(ids: list[int]) -> list[list[int]]:
    return [ids[first : first + WINDOW + 1] for first in range(0, len(ids) - 1, WINDOW)]


def _cost(logits: Tensor, targets: Tensor) -> float:
    flat = logits.flatten(0, 1).to(torch.float32)
    return F.cross_entropy(flat, targets.flatten(), ignore_index=PADDING, reduction="sum").item()


@torch.inference_mode()
def margins(params: ModelParams, token_ids: Sequence[int], num_prompt_tokens: int) -> Tensor:
    """Compute by how much each output token of a greedy text was the best.

    Args:
        params: Weights, on any device.
        token_ids: Prompt and output.
        num_prompt_tokens: Of these, at least one.

    Returns:
        [number of output tokens] fp32 on the CPU: the best logit minus the next.

    Mutates:
        Nothing.
    """
    logits = dense_logits(params, torch.tensor([token_ids], device=params.embedding.device))
    best = logits[0, num_prompt_tokens - 1 : -1].to(torch.float32).topk(2).values
    return (best[:, 0] - best[:, 1]).cpu()
