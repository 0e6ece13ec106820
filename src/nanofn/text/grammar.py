"""Grammars: which token may come next, so that an output has a form. The one door to llguidance.

llguidance, not xgrammar: it works out each mask from the grammar as it stands, so nothing is compiled ahead; it names the
keys of a schema that it does not carry out instead of passing them over; one 3 MB wheel that needs nothing else.
"""

import json
import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nanofn.batch.masks import num_words
from nanofn.errors import GrammarError
from nanofn.sampling.structured import StructuredOutputsParams
from nanofn.text.tokenizer import Tokenizer

MOST_APART = min(os.cpu_count() or 1, 32)
"""Matchers of one grammar that share nothing: no more than llguidance starts threads."""

Notation = Literal["regex", "lark", "grammar", "json_schema"]

logger = logging.getLogger("nanofn")


class Matcher:
    """One output's place in its grammar.

    Attributes:
        inner: llguidance's matcher.
        num_words: 32-bit words of a mask.
        family: Matchers of a grammar with one number share a lock.
        is_over: Whether nothing may follow.
        has_failed: Whether it is over because the grammar came to a limit of llguidance's: the output is not complete.
    """

    def __init__(self, inner: Any, width: int, family: int) -> None:
        self.inner, self.num_words, self.family = inner, width, family
        self.is_over = self.has_failed = False

    def advance(self, token_id: int) -> None:
        """Take a token. What the grammar does not allow, or what completes it, ends the output."""
        if self.is_over:
            return
        self.is_over = not self.inner.consume_token(token_id) or self.inner.is_stopped()
        if self.is_over and self.inner.is_error():
            self.has_failed = True
            # The lines after the first are llguidance's state.
            logger.warning("an output ends with reason error: %s", self.inner.get_error().partition("\n")[0])


class AllowedIds:
    """Works out what several outputs may go on with, side by side in threads, always in the same memory."""

    def __init__(self, num_threads: int | None = None) -> None:
        """Start no thread before it is needed.

        Args:
            num_threads: How many; None is four fifths of the cores.
        """
        self._num_threads = num_threads
        self._threads: Any = None
        self._words = np.zeros((0, 0), dtype=np.uint32)

    def of(self, matchers: Sequence[Matcher]) -> NDArray[np.uint32]:
        """Mark the ids that may come next. An end token is one where the output may end.

        Args:
            matchers: None of them is over.

        Returns:
            [num_matchers, num_words] uint32: bit i % 32 of word i // 32 is id i. The next call writes there again.
        """
        if not matchers:
            return self._words[:0]
        count, width = len(matchers), matchers[0].num_words
        if count > len(self._words) or width != self._words.shape[1]:
            self._words = np.zeros((count, width), dtype=np.uint32)
        address, mask_bytes = self._words.ctypes.data, self._words.strides[0]
        if count == 1:
            matchers[0].inner.unsafe_compute_mask_ptr(address, mask_bytes)
        else:
            if self._threads is None:
                from llguidance import LLExecutor  # noqa: PLC0415  an extra, which made the matchers

                self._threads = LLExecutor(self._num_threads)
            # A thread takes a run of the list, so those that share a lock follow each other instead of meeting at it.
            order = sorted(range(count), key=lambda place: matchers[place].family)
            pairs = [(matchers[place].inner, place) for place in order]
            self._threads.unsafe_compute_mask_ptr(pairs, address, mask_bytes, count)
        return self._words[:count]


class Grammar:
    """A form, compiled for a tokenizer.

    Copies of one matcher share what they have learnt of the vocabulary behind a lock, so threads would wait for each other. As
    many are made as threads may run, half a millisecond each, and outputs take turns with them.
    """

    def __init__(self, make: Callable[[], Any], width: int) -> None:
        """Start with none made.

        Args:
            make: Makes one of llguidance's matchers.
            width: 32-bit words of a mask.
        """
        self._make, self._width = make, width
        self._made: list[Any] = []
        self._num_started = 0

    def obstacle(self) -> str | None:
        """Say why no output can begin, if so. What the first mask takes is learnt for those that start from the same matcher."""
        first = self.start().inner
        first.compute_bitmask()
        # The lines after the first are llguidance's state.
        return str(first.get_error()).partition("\n")[0] if first.is_error() else None

    def start(self) -> Matcher:
        """Begin an output."""
        family = self._num_started % MOST_APART
        if family == len(self._made):
            self._made.append(self._make())
        self._num_started += 1
        return Matcher(self._made[family].deep_copy(), self._width, family)


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
            raise GrammarError("structured_outputs needs llguidance: python -m pip install llguidance") from error
        if self._ours is None:
            self._ours = from_tokenizer(
                self._tokenizer.inner, n_vocab=self._vocab_size, eos_token=self._eos_token_ids or None
            )
        try:
            text = grammar_from(*_source(wanted))
        except (ValueError, RecursionError) as error:  # a schema can be nested too deep to be read
            raise GrammarError(f"structured_outputs: {error}") from error
        problem = LLMatcher.validate_grammar(text, self._ours)
        if problem:
            raise GrammarError(f"structured_outputs: {problem.strip()}")
        grammar = Grammar(partial(LLMatcher, self._ours, text, log_level=0), num_words(self._vocab_size))
        if obstacle := grammar.obstacle():
            raise GrammarError(f"structured_outputs: there is no output of this form ({obstacle})")
        return grammar


def _source(wanted: StructuredOutputsParams) -> tuple[Notation, str]:
    """Name a form's notation, and write it down."""
    if wanted.regex is not None:
        return "regex", wanted.regex
    if wanted.choice is not None:
        # A name in capitals is one expression of the lexer; as alternatives of a rule there could be 2,000 at most.
        return "lark", "start: CHOICE\nCHOICE: " + " | ".join(map(json.dumps, wanted.choice))
    if wanted.grammar is not None:
        return "grammar", wanted.grammar
    text = '{"type": "object"}' if wanted.json is None else wanted.json
    if not wanted.disable_any_whitespace:
        return "json_schema", text
    schema = json.loads(text)
    if not isinstance(schema, dict):
        if schema is not True:
            raise ValueError(f"the schema is {text:.60}; it must be a JSON object, or true")
        schema = {}  # which means the same
    options = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
    return "json_schema", json.dumps({**schema, "x-guidance": options})
