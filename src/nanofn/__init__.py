"""nanofn: generate text from Qwen3-style language models.

A prompt becomes text in eight stages, one package each:

1. prompt to request: `llm.intake`, with `text` for the tokenizer
2. request to state: `schedule.admit`
3. state to plan: a `policy` decides, `schedule.plan` carries out what fits
4. plan to batch: `batch.build`
5. batch to logits: `device` gathers the inputs, `model` computes
6. logits to tokens: `sampling`
7. tokens to state: `schedule.commit`
8. effects to output: `llm.tracker`, with `text` for the detokenizer

Importing this package imports neither torch nor transformers; the first use of a name below does.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanofn.api import close as close, generate as generate
    from nanofn.llm.llm import LLM as LLM
    from nanofn.llm.logprobs import Logprob as Logprob
    from nanofn.llm.output import (
        CompletionOutput as CompletionOutput,
        RequestOutput as RequestOutput,
        TextDelta as TextDelta,
    )
    from nanofn.sampling.params import SamplingParams as SamplingParams
    from nanofn.sampling.structured import StructuredOutputsParams as StructuredOutputsParams

__version__ = "0.1.0"

_HOMES = {
    "LLM": "nanofn.llm.llm",
    "CompletionOutput": "nanofn.llm.output",
    "Logprob": "nanofn.llm.logprobs",
    "RequestOutput": "nanofn.llm.output",
    "SamplingParams": "nanofn.sampling.params",
    "StructuredOutputsParams": "nanofn.sampling.structured",
    "TextDelta": "nanofn.llm.output",
    "close": "nanofn.api",
    "generate": "nanofn.api",
}

__all__ = [  # noqa: PLE0604  built from the one list of public names
    "__version__",
    *_HOMES,
]


def __getattr__(name: str) -> Any:
    """Import a public name's module at its first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'nanofn' has no attribute {name!r}; it has {', '.join(sorted(_HOMES))}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
