"""Counter-based Gumbel noise: a token's noise is a function of (seed, position, child, token id) alone.

Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.3) under the key
`seed` (64 bits, low word first) and the counter `(token_id // 4, position, child, domain)`; output word
`token_id % 4` belongs to the token. No draw depends on another, so batch mates, preemption and the order of
evaluation cannot change a sample.
"""

import torch
from torch import Tensor

SAMPLING_DOMAIN = 0
"""Counter word 3 of the noise that picks tokens. Other uses of randomness take other domains."""

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> list[Tensor]:
    """Apply ten Philox4x32 rounds.

    Args:
        counter: Four int64 tensors that broadcast together, each word in [0, 2**32).
        key: Two int64 tensors that broadcast with the counter, each word in [0, 2**32).

    Returns:
        Four int64 tensors of the broadcast shape, each word in [0, 2**32).

    Mutates:
        Nothing.

    Source:
        Salmon et al. 2011, section 3.3; tested against the Random123 known-answer vectors.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        # int64 products wrap modulo 2**64, so both halves come out right despite the sign.
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = ((p1 >> 32) & _MASK) ^ c1 ^ k0, p1 & _MASK, ((p0 >> 32) & _MASK) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return [c0, c1, c2, c3]


def noise_words(
    seeds: Tensor, positions: Tensor, children: Tensor, vocab_size: int, domain: int = SAMPLING_DOMAIN
) -> Tensor:
    """Draw one 32-bit word per (row, token id).

    Args:
        seeds: [num_rows] int64. The 64 bits are the key; the sign is one of them.
        positions: [num_rows] integer. Position of the token being sampled.
        children: [num_rows] integer. Which of a request's `n` samples.
        vocab_size: Number of token ids.
        domain: Counter word 3.

    Returns:
        [num_rows, vocab_size] int64, each word in [0, 2**32).

    Mutates:
        Nothing.

    Source:
        This module's docstring.
    """
    quads = torch.arange((vocab_size + 3) // 4, dtype=torch.int64, device=seeds.device)
    rows = [word.to(torch.int64).unsqueeze(1) & _MASK for word in (positions, children)]
    key = ((seeds & _MASK).unsqueeze(1), ((seeds >> 32) & _MASK).unsqueeze(1))
    words = philox((quads.unsqueeze(0), rows[0], rows[1], torch.full_like(rows[0], domain)), key)
    return torch.stack(words, dim=-1).flatten(1)[:, :vocab_size]


def gumbel(words: Tensor) -> Tensor:
    """Turn 32-bit words into standard Gumbel noise, finite for every word.

    `x = min((w + 1/2) / 2**32, 1 - 2**-24)` in float32 is uniform on (0, 1) with fine steps near 0, and
    `-log(-log(1 - x))` puts those fine steps into the right tail, the only one that decides an argmax:
    the largest value is 22.9, where `-log(-log(x))` would stop at 16.6.

    Args:
        words: Any shape, int64 in [0, 2**32).

    Returns:
        The same shape, float32, in [-2.82, 22.88].

    Mutates:
        Nothing.

    Source:
        Gumbel-max trick: Maddison et al. 2014, arXiv:1411.0030, section 2.
    """
    x = ((words.to(torch.float32) + 0.5) * 2.0**-32).clamp(max=1 - 2.0**-24)
    return -torch.log(-torch.log1p(-x))


def gumbel_noise(seeds: Tensor, positions: Tensor, children: Tensor, vocab_size: int) -> Tensor:
    """Draw the noise that sampling adds to logits / temperature: `gumbel(noise_words(...))`, [num_rows, vocab_size] float32."""
    return gumbel(noise_words(seeds, positions, children, vocab_size))
