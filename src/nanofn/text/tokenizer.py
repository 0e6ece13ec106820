"""Tokenizer: text to token ids and back."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nanofn.errors import CheckpointError
from nanofn.request import TokenId


class Tokenizer:
    """A checkpoint's tokenizer.

    Attributes:
        vocab_size: Number of ids that stand for something; a model's logits may have more rows.
        eos_token_id: The tokenizer's own end-of-sequence token, if it names one.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.vocab_size = len(inner)
        self.eos_token_id: TokenId | None = inner.eos_token_id

    def encode(self, text: str) -> list[int]:
        """Turn text into ids, with the special tokens that the tokenizer adds by itself."""
        ids: list[int] = self._inner(text).input_ids
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Turn ids into text. Never fails: bytes that are no UTF-8 become U+FFFD, ids without a token nothing."""
        known = [token_id for token_id in token_ids if token_id < self.vocab_size]
        text: str = self._inner.decode(
            known, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return text


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """Load the tokenizer of a checkpoint's folder. Never runs code from it, never asks a hub.

    Raises:
        CheckpointError: There is none, or it cannot be read.
    """
    # transformers takes seconds to import.
    from transformers import AutoTokenizer

    try:
        inner = AutoTokenizer.from_pretrained(Path(folder), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{folder} has no tokenizer that can be read ({type(error).__name__}: {error}); "
            "copy tokenizer.json and tokenizer_config.json there, or pass tokenizer=FOLDER"
        ) from error
    return Tokenizer(inner)
