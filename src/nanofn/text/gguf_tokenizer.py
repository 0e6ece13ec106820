"""gguf_tokenizer: a tokenizer rebuilt from a GGUF file's metadata.

The file names the way text is cut before merging (`tokenizer.ggml.pre`) and leaves the rule itself to the reader. The
rules here are those of the models' own tokenizer.json; a name that is not among them is refused, since a wrong rule
shows in few texts and in nothing else.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nanofn.errors import CheckpointError, UnsupportedModelError
from nanofn.text.tokenizer import Tokenizer

_PREFIX = "tokenizer.ggml."
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5
"""Values of tokenizer.ggml.token_type: special tokens, ordinary ones that are never cut, rows without a token."""

_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|")


def gguf_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """Rebuild a byte-level BPE tokenizer with its special tokens and chat template.

    Raises:
        UnsupportedModelError: It is of another kind, or cuts text by a rule that is not known here.
        CheckpointError: The metadata lack it, or contradict each other.
    """
    refuse_unknown_tokenizer(metadata)
    of = {key.removeprefix(_PREFIX): value for key, value in metadata.items()}
    try:
        return _build(of, metadata.get("tokenizer.chat_template"))
    except Exception as error:  # the tokenizer library raises the bare class
        raise CheckpointError(
            f"the GGUF file's tokenizer cannot be rebuilt ({type(error).__name__}: {error}); download the file again, or "
            "pass tokenizer=FOLDER"
        ) from error


def refuse_unknown_tokenizer(metadata: Mapping[str, Any]) -> None:
    """Raise unless a file's tokenizer is of a kind that can be rebuilt.

    Raises:
        UnsupportedModelError: It is of another kind, or cuts text by a rule that is not known here.
    """
    if (model := metadata.get(f"{_PREFIX}model")) != "gpt2":
        raise UnsupportedModelError(
            f"tokenizer.ggml.model {model!r} is not supported; supported is 'gpt2' (byte-level BPE). Pass tokenizer=FOLDER "
            "with the model's own tokenizer.json"
        )
    pre = metadata.get(f"{_PREFIX}pre")
    if not isinstance(pre, str) or pre not in _RULES:
        raise UnsupportedModelError(
            f"tokenizer.ggml.pre {pre!r} is not supported; supported are {', '.join(sorted(_RULES))}. Pass "
            "tokenizer=FOLDER with the model's own tokenizer.json"
        )


def _build(of: Mapping[str, Any], chat_template: str | None) -> Tokenizer:
    from tokenizers import AddedToken, Tokenizer as Backend, decoders, models, processors  # noqa: PLC0415  as below
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415  takes seconds, which only those who load one pay

    tokens, types = list(of["tokens"]), list(of["token_type"])
    merges = [tuple(merge.split(" ", 1)) for merge in of["merges"]]
    vocabulary = {token: place for place, token in enumerate(tokens) if types[place] != _UNUSED}
    backend = Backend(models.BPE(vocab=vocabulary, merges=merges))
    _RULES[of["pre"]](backend)
    backend.decoder = decoders.ByteLevel()
    added = {
        kind: [AddedToken(token, normalized=False, special=kind == _CONTROL) for token in _of_type(tokens, types, kind)]
        for kind in (_CONTROL, _USER_DEFINED)
    }
    backend.add_special_tokens(added[_CONTROL])
    backend.add_tokens(added[_USER_DEFINED])
    named = {f"{name}_token": tokens[of[key]] for name, key in _NAMED.items() if of.get(key) is not None}
    if of.get("add_bos_token", of["pre"] in _BEGIN_UNASKED) and "bos_token" in named:
        start, place = named["bos_token"], of["bos_token_id"]
        backend.post_processor = processors.TemplateProcessing(
            single=[start, "$A"], pair=[start, "$A", start, "$B:1"], special_tokens=[(start, place)]
        )
    inner = PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False, **named)
    inner.chat_template = chat_template
    return Tokenizer(inner)


_BEGIN_UNASKED = frozenset({"llama-bpe"})
"""Rules whose models want their first token where the file does not say, as llama.cpp has it."""

_NAMED = {"bos": "bos_token_id", "eos": "eos_token_id", "unk": "unknown_token_id", "pad": "padding_token_id"}


def _of_type(tokens: Sequence[str], types: Sequence[int], kind: int) -> list[str]:
    return [token for token, found in zip(tokens, types, strict=True) if found == kind]


def _cut_as_smollm(backend: Any) -> None:
    from tokenizers import pre_tokenizers  # noqa: PLC0415  as above

    digits = pre_tokenizers.Digits(individual_digits=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])


def _cut_as_qwen2(backend: Any) -> None:
    from tokenizers import normalizers  # noqa: PLC0415  as above

    backend.normalizer = normalizers.NFC()
    _cut_by(backend, _QWEN2)


def _cut_as_llama3(backend: Any) -> None:
    backend.model.ignore_merges = True  # a word that is a token is one, whatever merges say
    _cut_by(backend, _LLAMA3)


def _cut_by(backend: Any, pattern: str) -> None:
    from tokenizers import Regex, pre_tokenizers  # noqa: PLC0415  as above

    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), to_bytes])


_RULES: Mapping[str, Callable[[Any], None]] = {
    "llama-bpe": _cut_as_llama3,
    "qwen2": _cut_as_qwen2,
    "smollm": _cut_as_smollm,
}
