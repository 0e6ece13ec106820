"""The sampler: greedy and Gumbel-max in one pass over the logits, top-k, top-p and min-p by thresholds."""

import torch
from torch import Tensor

from nanofn_kernels._dispatch import FLOATS, check_tensor, define_op
from nanofn_kernels.errors import ShapeError
from nanofn_kernels.reference.sample import GREEDY_BELOW, sample_into as _reference
from nanofn_kernels.sample_few import launch_few
from nanofn_kernels.sample_filter import launch_filter
from nanofn_kernels.sample_pick import launch_pick

__all__ = ["GREEDY_BELOW", "sample", "sample_into"]

MAX_VOCAB_SIZE = 1 << 24
"""Counts are exact in float32 up to here."""

INTEGERS = (torch.int32, torch.int64)

KEY_SHIFT = {torch.bfloat16: 16, torch.float16: 13, torch.float32: 0}
"""Low bits of a float32 that are zero in every value of a type."""


def _check(
    token_ids: Tensor, is_undefined: Tensor, logits: Tensor, temperature: Tensor, seed: Tensor, position: Tensor, child: Tensor,
    is_valid: Tensor | None = None, top_k: Tensor | None = None, top_p: Tensor | None = None, min_p: Tensor | None = None,
    launch_pdl: bool = False,
) -> None:  # fmt: skip
    del launch_pdl
    device = logits.device
    check_tensor("logits", logits, (None, None), FLOATS, device)
    num_rows, vocab_size = logits.shape
    if not 0 < vocab_size <= MAX_VOCAB_SIZE:
        raise ShapeError("logits", f"1 to {MAX_VOCAB_SIZE} ids", vocab_size)
    for name, tensor, dtypes in (
        ("token_ids", token_ids, torch.int32),
        ("is_undefined", is_undefined, torch.bool),
        ("temperature", temperature, torch.float32),
        ("seed", seed, torch.int64),
        ("position", position, INTEGERS),
        ("child", child, INTEGERS),
        ("is_valid", is_valid, torch.bool),
        ("top_k", top_k, INTEGERS),
        ("top_p", top_p, torch.float32),
        ("min_p", min_p, torch.float32),
    ):
        if tensor is not None:
            check_tensor(name, tensor, (num_rows,), dtypes, device)


@define_op(
    "sample_into", mutates=("token_ids", "is_undefined"), reference=_reference, fake=lambda *_, **__: None, check=_check
)
def sample_into(
    token_ids: Tensor,
    is_undefined: Tensor,
    logits: Tensor,
    temperature: Tensor,
    seed: Tensor,
    position: Tensor,
    child: Tensor,
    is_valid: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    launch_pdl: bool = False,
) -> None:
    """Sample one token id per row: the lowest id of the largest `logits / temperature + noise` among the kept ids.

    The noise of an id is `reference.noise.gumbel_noise`: Philox words bit for bit, their logarithms within 1e-5. Filters
    apply to the tempered distribution in the order top-k, top-p, min-p (Hugging Face transformers' order) and never change
    a greedy row. They keep a prefix of the ids ordered by falling logit, lower ids first on ties: top-k exactly k;
    top-p the shortest prefix with that share of what top-k left, so the id that crosses it stays; min-p what is at
    least that likely relative to the likeliest id. The likeliest id always stays.

    Nothing is read back to the host. A row's result does not depend on the other rows nor on their number.

    Args:
        token_ids: [num_rows] int32. Written where valid; 0 where undefined.
        is_undefined: [num_rows] bool. Written where valid: the row has a NaN, an infinite maximum or nothing but -inf.
        logits: [num_rows, vocab_size] fp16, bf16 or fp32. Rows may be strided. -inf forbids an id.
        temperature: [num_rows] fp32, dimensionless and finite. Below 1e-5 the row is greedy.
        seed: [num_rows] int64. All 64 bits are the noise's key.
        position: [num_rows] int32 or int64. Position of the token being sampled.
        child: [num_rows] int32 or int64. Which of a request's samples.
        is_valid: [num_rows] bool. False marks padding, for which nothing is read or written; None means all are valid.
        top_k: [num_rows] int32 or int64. At most 0 or at least vocab_size is off. Meant for k up to 2,048; more is slower.
        top_p: [num_rows] fp32. At least 1 is off; 0 keeps one id.
        min_p: [num_rows] fp32. At most 0 is off.
        launch_pdl: Launch while the kernel in front still runs. Every argument may be its product.

    Raises:
        ShapeError, DtypeError, StrideError: an argument does not fit.

    Mutates:
        token_ids, is_undefined, where valid.

    Accuracy:
        Greedy is exact. A sampled id may differ from the reference's where the two best scores are within 2e-5, a kept set
        by the id at the end of top-p where the two sums differ in their last bits (3e-5 of the mass).

    Source:
        Gumbel-max trick: Maddison et al. 2014, arXiv:1411.0030, section 2. Top-p: Holtzman et al. 2019, arXiv:1904.09751,
        section 3.1. Min-p: Nguyen et al. 2024, arXiv:2407.01082, section 3. The search by pivots is ours; others: Qrita,
        arXiv:2602.01518.
    """
    if logits.shape[0] == 0:
        return
    bounds = state = None
    if top_k is not None or top_p is not None or min_p is not None:
        filters = (temperature, top_k, top_p, min_p)
        shift = KEY_SHIFT[logits.dtype]
        few = launch_few(token_ids, is_undefined, logits, *filters, seed, position, child, is_valid, shift, launch_pdl)
        launch_filter(few, logits, *filters, shift)
        bounds, state, launch_pdl = few.bounds, few.state, True
    launch_pick(
        token_ids,
        is_undefined,
        logits,
        temperature,
        seed,
        position,
        child,
        is_valid,
        bounds,
        state,
        launch_pdl=launch_pdl,
    )


def sample(
    logits: Tensor,
    temperature: Tensor,
    seed: Tensor,
    position: Tensor,
    child: Tensor,
    *,
    is_valid: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Sample into new tensors: `sample_into`, with -1 and False for padding.

    Args:
        logits: As `sample_into`, like all the others.
        temperature: [num_rows] fp32.
        seed: [num_rows] int64.
        position: [num_rows] int32 or int64.
        child: [num_rows] int32 or int64.
        is_valid: [num_rows] bool, or None.
        top_k: [num_rows] int32 or int64, or None.
        top_p: [num_rows] fp32, or None.
        min_p: [num_rows] fp32, or None.

    Returns:
        token_ids [num_rows] int32 and is_undefined [num_rows] bool.

    Mutates:
        Nothing.

    Accuracy:
        As `sample_into`.

    Source:
        As `sample_into`.
    """
    token_ids = torch.full((logits.shape[0],), -1, dtype=torch.int32, device=logits.device)
    is_undefined = torch.zeros((logits.shape[0],), dtype=torch.bool, device=logits.device)
    sample_into(token_ids, is_undefined, logits, temperature, seed, position, child, is_valid, top_k, top_p, min_p)
    return token_ids, is_undefined
