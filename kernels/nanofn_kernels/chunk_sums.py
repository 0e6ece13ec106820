"""One pass over the logits for log-probabilities: each chunk's largest logit, its mass, and how many are above a token's."""

import torch
from torch import Tensor

from nanofn_kernels._dispatch import FLOATS, cdiv, check_tensor, define_op, jit, tl
from nanofn_kernels.errors import ShapeError
from nanofn_kernels.reference.chunk_sums import CHUNK, chunk_sums as _reference

__all__ = ["CHUNK", "chunk_sums"]

CHUNKS_A_PROGRAM = 8


@jit
def _chunk_sums_kernel(
    peaks_ptr, mass_ptr, above_ptr, logits_ptr, token_ids_ptr, vocab_size, logits_stride, num_vocab_chunks,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """peak = max x, mass = sum exp(x - peak), above = |x > x[token]|, over each chunk of a row.

    Program (i, j) does CHUNKS chunks of row i. Traffic: element_bytes * vocab_size + 12 * num_vocab_chunks bytes a row.
    """
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1) * CHUNKS + tl.arange(0, CHUNKS)
    token = chunk[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
    x = tl.load(logits_ptr + row * logits_stride + token, mask=token < vocab_size, other=float("-inf")).to(tl.float32)
    chosen = tl.load(logits_ptr + row * logits_stride + tl.load(token_ids_ptr + row)).to(tl.float32)
    peak = tl.max(x, 1)
    # A chunk of nothing but -inf has no mass, where -inf - -inf would be NaN.
    mass = tl.sum(tl.exp(x - tl.maximum(peak, -3.4028234663852886e38)[:, None]), 1)
    above = tl.sum((x > chosen).to(tl.int32), 1)
    place = row * num_vocab_chunks + chunk
    inside = chunk < num_vocab_chunks
    tl.store(peaks_ptr + place, peak, mask=inside)
    tl.store(mass_ptr + place, mass, mask=inside)
    tl.store(above_ptr + place, above, mask=inside)


def _check(logits: Tensor, token_ids: Tensor) -> None:
    check_tensor("logits", logits, (None, None), FLOATS, logits.device)
    check_tensor("token_ids", token_ids, (logits.shape[0],), torch.int64, logits.device)
    if logits.shape[1] == 0:
        raise ShapeError("logits", "at least one id", 0)


def _new(logits: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    shape = (logits.shape[0], cdiv(logits.shape[1], CHUNK))
    peaks, mass = (logits.new_empty(shape, dtype=torch.float32) for _ in range(2))
    return peaks, mass, logits.new_empty(shape, dtype=torch.int32)


@define_op("chunk_sums", mutates=(), reference=_reference, fake=_new, check=_check)
def chunk_sums(logits: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sum a row's logits up by chunks of `CHUNK` ids, from which its softmax, a token's rank and the likeliest ids follow.

    The k largest logits of a row lie in the k chunks with the largest peaks. Nothing is read back to the host, and a row's
    result does not depend on the others.

    Args:
        logits: [num_rows, vocab_size] fp16, bf16 or fp32. Rows may be strided.
        token_ids: [num_rows] int64. The token whose rank is asked for.

    Returns:
        peaks [num_rows, num_vocab_chunks] fp32: the largest logit.
        mass [num_rows, num_vocab_chunks] fp32: the sum of exp(logit - peak); 0 where all are -inf.
        above [num_rows, num_vocab_chunks] int32: how many logits are larger than the token's.

    Raises:
        ShapeError, DtypeError, StrideError: an argument does not fit.

    Mutates:
        Nothing.

    Accuracy:
        Peaks and counts are exact; mass within 1e-6 of its value.

    Source:
        Ours; a softmax by parts as in Milakov and Gimelshein 2018, arXiv:1805.02867, section 3.
    """
    result = _new(logits, token_ids)
    (num_rows, vocab_size), num_vocab_chunks = logits.shape, result[0].shape[1]
    if num_rows:
        _chunk_sums_kernel[(num_rows, cdiv(num_vocab_chunks, CHUNKS_A_PROGRAM))](
            *result, logits, token_ids, vocab_size, logits.stride(0), num_vocab_chunks, CHUNK=CHUNK, CHUNKS=CHUNKS_A_PROGRAM,
            num_warps=4,
        )  # fmt: skip
    return result
