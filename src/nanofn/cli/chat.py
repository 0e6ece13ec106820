"""`nanofn chat`: a conversation in the terminal."""

import argparse
import contextlib
import sys
from collections.abc import Sequence
from typing import Any

from nanofn.cli.generate import add_sampling_arguments, sampling_params
from nanofn.errors import ChatTemplateError, RequestError
from nanofn.llm.llm import LLM
from nanofn.sampling.params import SamplingParams

HELP = "/reset forgets the conversation, /exit or Ctrl-D ends it, Ctrl-C stops an answer."


def run(arguments: Sequence[str]) -> int:
    """Read a line, answer it, and remember both."""
    parser = argparse.ArgumentParser(prog="nanofn chat", description="Talk with a language model.", epilog=HELP)
    parser.add_argument("--system", metavar="TEXT", help="what the model is told first")
    add_sampling_arguments(parser)
    given = parser.parse_args(arguments)
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  gives input() line editing and history, where Python has it
    with LLM(given.model) as llm:
        opening = [{"role": "system", "content": given.system}] if given.system else []
        converse(llm, opening, sampling_params(llm, given))
        if given.stats:
            sys.stderr.write(f"{llm.summary()}\n")
    return 0


def converse(llm: LLM, opening: list[dict[str, str]], params: SamplingParams) -> None:
    """Talk until the reader has had enough."""
    sys.stderr.write(f"{HELP}\n")
    history = list(opening)
    while (line := _read()) is not None:
        if line in ("/exit", "/quit"):
            return
        if line == "/reset":
            history = list(opening)
        elif line in ("/help", "/?"):
            sys.stderr.write(f"{HELP}\n")
        elif line:
            turn = {"role": "user", "content": line}
            answer = _answer(llm, [*history, turn], params)
            if answer is not None:
                history += [turn, {"role": "assistant", "content": answer}]


def _read() -> str | None:
    """Read a line; None at the end. Ctrl-C clears the line. Only a terminal is prompted."""
    prompt, newline = ("> ", "\n") if sys.stdin.isatty() else ("", "")
    while True:
        try:
            return input(prompt).strip()
        except EOFError:
            sys.stdout.write(newline)
            return None
        except KeyboardInterrupt:
            sys.stdout.write(newline)


def _answer(llm: LLM, messages: list[dict[str, Any]], params: SamplingParams) -> str | None:
    """Print the answer as it comes; returns it, as far as it came, or None if there cannot be one."""
    pieces: list[str] = []
    try:
        prompt = llm.tokenizer.render_chat(messages)
        with contextlib.closing(llm.stream([prompt], params)) as deltas:
            for delta in deltas:
                pieces.append(delta.text)
                sys.stdout.write(delta.text)
                sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stdout.write(" ...")
    except (ChatTemplateError, RequestError) as error:
        sys.stderr.write(f"{error}; /reset starts over\n")
        return None
    sys.stdout.write("\n")
    return "".join(pieces)
