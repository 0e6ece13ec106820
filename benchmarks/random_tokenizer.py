"""A byte-level tokenizer of any size with random words, so that every id of a random model has a text.

The embedded model's tokenizer under a head of 151,936 rows would leave nearly all sampled ids without a token; those are
passed over, and turning ids into text would seem to cost nothing. Here each id decodes to a word or a part of one, and
every word comes from merges, so that encoding and loading have as much to do as with a trained vocabulary.
"""

import json
from pathlib import Path
from random import Random
from string import ascii_lowercase

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""The last ids; the very last ends a text."""

SPACE = "Ġ"
"""A blank in the alphabet of byte-level tokenizers."""

LONGEST_PART = 3
"""Letters of what is joined to a word, which so has about six, as the words of trained vocabularies do."""


def random_tokenizer(vocab_size: int) -> Tokenizer:
    """Make a tokenizer with exactly so many ids, always the same one.

    Raises:
        ValueError: There are fewer ids than bytes and special tokens, or more than words are made for.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if vocab_size < len(alphabet) + len(SPECIAL):
        raise ValueError(f"vocab_size is {vocab_size}; bytes and special tokens take {len(alphabet) + len(SPECIAL)}")
    random = Random(0)
    parts = [SPACE, *ascii_lowercase]
    vocabulary = {byte: number for number, byte in enumerate(alphabet)}
    merges = []
    while len(vocabulary) < vocab_size - len(SPECIAL):
        left, right = random.choice(parts), random.choice(parts)
        word = left + right
        if right.startswith(SPACE) or word in vocabulary:
            continue
        vocabulary[word] = len(vocabulary)
        merges.append((left, right))
        if len(word) <= LONGEST_PART:
            parts.append(word)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    return tokenizer


def save_random_tokenizer(vocab_size: int, folder: Path) -> None:
    """Write `random_tokenizer` the way a checkpoint has it."""
    random_tokenizer(vocab_size).save(str(folder / "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIAL[-1], "pad_token": SPECIAL[0]}
    (folder / "tokenizer_config.json").write_text(json.dumps(names), encoding="utf-8")
