"""Reasoning: an answer that begins with thoughts, parted into thoughts and answer."""

from collections.abc import Sequence

from attrs import evolve

from nanofn.llm.output import CompletionOutput, RequestOutput
from nanofn.sampling.params import SamplingParams
from nanofn.text.tokenizer import Tokenizer

OPEN, CLOSE = "<think>", "</think>"
"""Qwen3's marks, which most models that think have taken over."""


def answers(
    tokenizer: Tokenizer,
    outputs: list[RequestOutput],
    chat_template: str | None,
    sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
) -> list[RequestOutput]:
    """Part the texts of conversations, if the template has the marks.

    A prompt may end with the opening mark: then the text begins inside the thoughts. Not so where the output has a form with
    no closing mark in it, which is an answer from its first token on.
    """
    if not tokenizer.thinks(chat_template):
        return outputs
    several = list(sampling_params) if isinstance(sampling_params, Sequence) else [sampling_params] * len(outputs)
    parted = []
    for output, each in zip(outputs, several, strict=True):
        is_open = tokenizer.decode(output.prompt_token_ids[-8:], skip_special_tokens=False).rstrip().endswith(OPEN)
        has_form = each is not None and each.structured_outputs is not None
        children = [
            child if has_form and CLOSE not in child.text else _parted(child, is_open=is_open)
            for child in output.outputs
        ]
        parted.append(evolve(output, outputs=tuple(children)))
    return parted


def _parted(output: CompletionOutput, *, is_open: bool) -> CompletionOutput:
    text = output.text.lstrip()
    if not is_open and not text.startswith(OPEN):
        return output
    thoughts, _, answer = text.removeprefix(OPEN).partition(CLOSE)
    return evolve(output, text=answer.lstrip("\n"), reasoning=thoughts.strip("\n"))
