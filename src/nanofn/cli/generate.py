"""`nanofn "prompt"`: generate text and print it as it comes."""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence

from nanofn import __version__
from nanofn.llm.llm import LLM
from nanofn.llm.output import TextDelta
from nanofn.sampling.params import SamplingParams


def run(arguments: Sequence[str]) -> int:
    """Generate text for each prompt; prompts and texts go to stdout, everything else to stderr."""
    given = _parser().parse_args(arguments)
    with LLM(given.model) as llm:
        params = sampling_params(llm, given)
        if given.json:
            for output in llm.generate(given.prompt, params):
                sys.stdout.write(json.dumps(output.to_dict()) + "\n")
        else:
            streams = [llm.stream(prompt, params) for prompt in given.prompt]  # a bad prompt is refused before any text
            for prompt, deltas in zip(given.prompt, streams, strict=True):
                _show(prompt, deltas)
        if given.stats:
            sys.stderr.write(f"{llm.summary()}\n")
    return 0


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that every generating command has."""
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="a folder, a GGUF file, or OWNER/NAME on the hub; without it, the small model that comes along",
    )
    parser.add_argument("--max-tokens", type=int, metavar="N", help="most tokens of an answer")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 always takes the likeliest token")
    parser.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same text")
    parser.add_argument("--stats", action="store_true", help="say at the end how fast it went")


def sampling_params(llm: LLM, given: argparse.Namespace) -> SamplingParams:
    """Take the model's defaults, changed by what was given."""
    named = {"max_tokens": given.max_tokens, "temperature": given.temperature, "seed": given.seed}
    changes = {name: value for name, value in named.items() if value is not None}
    return llm.get_default_sampling_params().replace(**changes)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nanofn",
        description="Generate text from a language model.",
        epilog="`nanofn chat` is a conversation, `nanofn info MODEL` says what a model is and what fits; --help says more.",
    )
    parser.add_argument("prompt", nargs="+", help="one prompt, or several")
    add_sampling_arguments(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object per prompt instead of text as it comes")
    parser.add_argument("--version", action="version", version=f"nanofn {__version__}")
    return parser


def _show(prompt: str, deltas: Iterable[TextDelta]) -> None:
    sys.stdout.write(prompt)
    for delta in deltas:
        sys.stdout.write(delta.text)
        sys.stdout.flush()
    sys.stdout.write("\n")
