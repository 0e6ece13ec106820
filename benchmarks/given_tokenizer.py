"""The tokenizer of a benchmark: one that lies in a folder, or random words."""

from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from nanofn.text.tokenizer import Tokenizer
from random_tokenizer import SPECIAL, random_tokenizer


def given_tokenizer(folder: Path | None, vocab_size: int) -> Tokenizer:
    """Load the tokenizer in a folder, or make one with a word for each of so many ids."""
    if folder is not None:
        return Tokenizer(AutoTokenizer.from_pretrained(folder))
    inner = PreTrainedTokenizerFast(tokenizer_object=random_tokenizer(vocab_size), eos_token=SPECIAL[-1])
    return Tokenizer(inner)
