"""The noise of the kernels: integers equal to those of the CPU, and tokens wherever the noise decides clearly."""

import pytest
import torch

from nanofn_kernels._dispatch import INTERPRETED, jit, tl
from nanofn_kernels.reference.noise import SAMPLING_DOMAIN, gumbel_noise, noise_words as words_of
from nanofn_kernels.reference.sample import sample as reference
from nanofn_kernels.sample import sample
from nanofn_kernels.sample_pick import noise_word, noise_words
from ops.paged import DEVICE

GAP = 1e-5
"""Noise of a kernel is its integers' to this; a token is certain where the best score leads by more."""

needs_kernels = pytest.mark.skipif(
    not INTERPRETED and DEVICE.type == "cpu", reason="kernels run on a GPU or in Triton's interpreter"
)


@jit
def _words_kernel(quads_ptr, ids_ptr, seed_ptr, position_ptr, child_ptr, DOMAIN: tl.constexpr, SIZE: tl.constexpr):  # noqa: N803
    """Both ways in which kernels draw the words of ids 0 to SIZE - 1, one row a program."""
    row = tl.program_id(0).to(tl.int64)
    seed, position, child = tl.load(seed_ptr + row), tl.load(position_ptr + row), tl.load(child_ptr + row)
    domain = row * 0 + DOMAIN
    quad, ids = tl.arange(0, SIZE // 4), tl.arange(0, SIZE)
    words = noise_words(quad.to(tl.uint32), seed, position, child, domain)
    place = row * SIZE + quad[:, None] * 4 + tl.arange(0, 4)[None, :]
    tl.store(quads_ptr + place, words.to(tl.int64))
    tl.store(ids_ptr + row * SIZE + ids, noise_word(ids, seed, position, child, domain).to(tl.int64))


def drawn(rows):
    """Seeds of 64 bits, positions and children, on the CPU; the first ones are extremes."""
    random = torch.Generator().manual_seed(5)
    seed = torch.randint(-(2**63), 2**63 - 1, (rows,), generator=random)
    seed[:4] = torch.tensor([0, -1, 2**63 - 1, -(2**63)])
    position = torch.randint(0, 2**31 - 1, (rows,), generator=random)
    position[:2] = torch.tensor([0, 2**31 - 1])
    return seed, position, torch.randint(0, 9, (rows,), generator=random)


@needs_kernels
@pytest.mark.parametrize("rows", [64, pytest.param(1_000, marks=pytest.mark.gpu)], ids=["few", "many"])
def test_integers_are_those_of_the_cpu(rows) -> None:
    """Every word of 4,096 ids in every row, drawn four at a time and one by one."""
    size = 4_096
    arguments = drawn(rows)
    quads, ids = (torch.full((rows, size), -1, dtype=torch.int64, device=DEVICE) for _ in range(2))
    _words_kernel[(rows,)](quads, ids, *(each.to(DEVICE) for each in arguments), DOMAIN=SAMPLING_DOMAIN, SIZE=size)
    expected = words_of(*arguments, size)
    assert torch.equal(expected, quads.cpu())
    assert torch.equal(expected, ids.cpu())


@pytest.mark.parametrize(
    ("rows", "vocab_size"), [(60, 2_500), pytest.param(256, 151_936, marks=pytest.mark.gpu)], ids=["few", "many"]
)
@pytest.mark.parametrize("spread", [0.0, 2.0])
def test_tokens_are_those_of_the_cpu_where_the_noise_decides_clearly(rows, vocab_size, spread) -> None:
    """Computed there in fp32: whoever leads by more than the kernels' noise may be off is the token."""
    seed, position, child = drawn(rows)
    logits = torch.randn((rows, vocab_size), generator=torch.Generator().manual_seed(6)) * spread
    temperature = torch.ones(rows)
    arguments = logits, temperature, seed, position, child
    best = (logits + gumbel_noise(seed, position, child, vocab_size)).topk(2).values
    is_clear = best[:, 0] - best[:, 1] > GAP
    assert is_clear.sum() > 0.9 * rows
    found, _ = sample(*(each.to(DEVICE) for each in arguments))
    expected, _ = reference(*arguments)
    assert torch.equal(expected[is_clear], found.cpu()[is_clear])
