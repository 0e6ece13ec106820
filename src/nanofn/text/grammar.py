"""Grammars: which token may come next, so that an output has a form. The one door to llguidance.

llguidance, not xgrammar: it works out each mask from the grammar as it stands, so nothing is compiled ahead; it names the
keys of a schema that it does not carry out instead of passing them over; one 3 MB wheel that needs nothing else.
"""

import json
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nanofn.errors import GrammarError
from nanofn.sampling.structured import StructuredOutputsParams
from nanofn.text.tokenizer import Tokenizer

Notation = Literal["regex", "choice", "grammar", "json_schema"]


class Matcher:
    """One output's place in its grammar."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.is_over = False

    def allowed(self) -> NDArray[np.uint32]:
        """Mark the ids that may come next, a bit each: bit i % 32 of word i // 32. An end token is one where the output may end."""
        return np.frombuffer(self._inner.compute_bitmask(), dtype="<u4")

    def advance(self, token_id: int) -> None:
        """Take a token. What the grammar does not allow, or what completes it, ends the output."""
        self.is_over = self.is_over or not self._inner.consume_token(token_id) or self._inner.is_stopped()


class Grammar:
    """A form, compiled for a tokenizer."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def start(self) -> Matcher:
        """Begin an output."""
        return Matcher(self._inner.deep_copy())


class Grammars:
    """Compiles forms for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """Load nothing before it is needed.

        Args:
            tokenizer: Of the model.
            vocab_size: Ids of a mask: rows of the model's head.
            eos_token_ids: What ends an output; where a model has none, a complete output ends by itself.
        """
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = list(eos_token_ids)
        self._ours: Any = None
        self._latest: tuple[StructuredOutputsParams, Grammar] | None = None

    def compile(self, wanted: StructuredOutputsParams) -> Grammar:
        """Compile a form; the one of the time before, which a call's prompts mostly share, is at hand.

        Raises:
            GrammarError: It is wrong, it asks for what is not supported, or llguidance is not installed.
        """
        if self._latest is None or self._latest[0] != wanted:
            self._latest = wanted, self._compile(wanted)
        return self._latest[1]

    def _compile(self, wanted: StructuredOutputsParams) -> Grammar:
        try:
            from llguidance import LLMatcher, grammar_from  # noqa: PLC0415  an extra
            from llguidance.hf import from_tokenizer  # noqa: PLC0415
        except ImportError as error:
            raise GrammarError(
                'structured_outputs needs llguidance: python -m pip install "nanofn[structured]"'
            ) from error
        if self._ours is None:
            self._ours = from_tokenizer(
                self._tokenizer.inner, n_vocab=self._vocab_size, eos_token=self._eos_token_ids or None
            )
        notation, source = _source(wanted)
        try:
            text = grammar_from(notation, source)
        except ValueError as error:
            raise GrammarError(f"structured_outputs: {error}") from error
        problem = LLMatcher.validate_grammar(text, self._ours)
        if problem:
            raise GrammarError(f"structured_outputs: {problem.strip()}")
        return Grammar(LLMatcher(self._ours, text))


def _source(wanted: StructuredOutputsParams) -> tuple[Notation, str]:
    """Name a form's notation, and write it down."""
    if wanted.regex is not None:
        return "regex", wanted.regex
    if wanted.choice is not None:
        return "choice", json.dumps(wanted.choice)
    if wanted.grammar is not None:
        return "grammar", wanted.grammar
    text = wanted.json or '{"type": "object"}'
    if not wanted.disable_any_whitespace:
        return "json_schema", text
    schema = json.loads(text)
    options = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
    return "json_schema", json.dumps({**schema, "x-guidance": options})
