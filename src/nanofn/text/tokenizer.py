"""Tokenizer: text to token ids and back."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nanofn.errors import ChatTemplateError, CheckpointError
from nanofn.request import TokenId

Message = Mapping[str, Any]
"""One turn of a conversation: {"role": "user", "content": "..."}, and what else the template reads."""


class Tokenizer:
    """A checkpoint's tokenizer.

    Attributes:
        vocab_size: Ids from here on have no token; a model's logits may have more rows.
        eos_token_id: The tokenizer's own end-of-sequence token, if it names one.
        special_token_ids: What `skip_special_tokens` leaves out.
        inner: transformers' tokenizer.
        byte_token_ids: Tokens such as <0xE2> that stand for one byte; a run of them is decoded as a whole, so its text
            is uncertain while it may go on. Byte-level vocabularies have none.
        joins_special_tokens: Whether special tokens that follow each other have nothing between them in the text.
    """

    def __init__(self, inner: Any) -> None:
        added = inner.added_tokens_decoder
        self.inner = inner
        self.vocab_size = max(len(inner), 1 + max(added, default=-1))
        self.eos_token_id: TokenId | None = inner.eos_token_id
        self.special_token_ids = frozenset([token_id for token_id, token in added.items() if token.special])
        self.byte_token_ids = _byte_token_ids(inner)
        self._texts: dict[int, str] = {}
        special = sorted(self.special_token_ids) * 2
        together = self.decode(special, skip_special_tokens=False)
        self.joins_special_tokens = together == "".join(map(self.text_of, special))

    def encode(self, text: str) -> list[int]:
        """Turn text into ids, with the special tokens that the tokenizer adds by itself."""
        ids: list[int] = self.inner(text, verbose=False).input_ids  # how long is too long is the engine's to say
        return ids

    def encode_plain(self, text: str) -> list[int]:
        """Turn text into ids, with no special tokens around it."""
        ids: list[int] = self.inner(text, add_special_tokens=False, verbose=False).input_ids
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Turn ids into text. Never fails: bytes that are no UTF-8 become U+FFFD, ids without a token nothing."""
        known = [token_id for token_id in token_ids if 0 <= token_id < self.vocab_size]
        text: str = self.inner.decode(
            known, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return text

    def text_of(self, token_id: int) -> str:
        """Decode one token alone, special or not; the same one is decoded once. Parts of a character become U+FFFD."""
        text = self._texts.get(token_id)
        if text is None:
            text = self._texts[token_id] = self.decode([token_id], skip_special_tokens=False)
        return text

    def thinks(self, chat_template: str | None = None) -> bool:
        """Whether a chat template, or the tokenizer's own, has marks for what a model thinks before it answers."""
        template = chat_template or self.inner.chat_template
        return "</think>" in str(template)

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        **template_kwargs: Any,
    ) -> list[int]:
        """Turn a conversation into a prompt's ids. The template alone decides about special tokens: no double BOS.

        Args:
            messages: The conversation.
            chat_template: A Jinja template; None is the tokenizer's own.
            add_generation_prompt: End with the words that open the answer.
            template_kwargs: What else the template reads, such as Qwen3's `enable_thinking`.

        Raises:
            ChatTemplateError: There is no template, or it does not take these messages.
        """
        if chat_template is None and self.inner.chat_template is None:
            raise ChatTemplateError(
                "the tokenizer has no chat template; pass one, for example chat_template="
                '"{% for m in messages %}{{ m.role }}: {{ m.content }}\\n{% endfor %}assistant:", or use generate()'
            )
        if not _is_conversation(messages):
            raise ChatTemplateError(
                f"a conversation is {messages!r:.80}; it must be a list of {{'role': ..., 'content': ...}}, at least one"
            )
        try:
            rendered: str = self.inner.apply_chat_template(
                list(messages),
                chat_template=chat_template,
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
                **template_kwargs,
            )
            return self.encode_plain(rendered)
        except Exception as error:
            raise ChatTemplateError(
                f"the chat template does not take these messages ({type(error).__name__}: {error})"
            ) from error


def _byte_token_ids(inner: Any) -> frozenset[int]:
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    ids = [token_id for token_id in inner.convert_tokens_to_ids(names) if token_id is not None]
    # A name without a token of its own becomes the unknown token.
    return frozenset([token_id for token_id in ids if inner.convert_ids_to_tokens(token_id) in names])


def _is_conversation(messages: Any) -> bool:
    if not isinstance(messages, Sequence) or not messages:
        return False
    return all(isinstance(message, Mapping) and "role" in message for message in messages)


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """Load the tokenizer of a checkpoint's folder. Never runs code from it, never asks a hub.

    Raises:
        CheckpointError: There is none, or it cannot be read.
    """
    from transformers import AutoTokenizer  # noqa: PLC0415  takes seconds, which only those who load one pay

    try:
        inner = AutoTokenizer.from_pretrained(Path(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # a damaged tokenizer.json raises the bare class
        raise CheckpointError(
            f"{folder} has no tokenizer that can be read ({type(error).__name__}: {' '.join(str(error).split())}); "
            "copy tokenizer.json and tokenizer_config.json there, or pass tokenizer=FOLDER"
        ) from error
    tokenizer = Tokenizer(inner)
    if tokenizer.vocab_size <= len(tokenizer.special_token_ids):  # what transformers makes of a folder without one
        raise CheckpointError(
            f"{folder} has no tokenizer; copy tokenizer.json and tokenizer_config.json there, or pass tokenizer=FOLDER"
        )
    return tokenizer
