"""Reasoning: an answer that begins with thoughts, parted into thoughts and answer."""

from attrs import evolve

from nanofn.llm.output import CompletionOutput, RequestOutput
from nanofn.text.tokenizer import Tokenizer

OPEN, CLOSE = "<think>", "</think>"
"""Qwen3's marks, which most models that think have taken over."""


def answers(tokenizer: Tokenizer, outputs: list[RequestOutput], chat_template: str | None) -> list[RequestOutput]:
    """Part the texts of conversations, if the template has the marks.

    A prompt may end with the opening mark: then the text begins inside the thoughts.
    """
    if not tokenizer.thinks(chat_template):
        return outputs
    parted = []
    for output in outputs:
        is_open = tokenizer.decode(output.prompt_token_ids[-8:], skip_special_tokens=False).rstrip().endswith(OPEN)
        parted.append(evolve(output, outputs=tuple([_parted(each, is_open=is_open) for each in output.outputs])))
    return parted


def _parted(output: CompletionOutput, *, is_open: bool) -> CompletionOutput:
    text = output.text.lstrip()
    if not is_open and not text.startswith(OPEN):
        return output
    thoughts, _, answer = text.removeprefix(OPEN).partition(CLOSE)
    return evolve(output, text=answer.lstrip("\n"), reasoning=thoughts.strip("\n"))
