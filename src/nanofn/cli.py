"""The command line: `nanofn "prompt"`."""

import argparse
import json
import sys
from collections.abc import Sequence

from nanofn import __version__
from nanofn.errors import NanofnError


def main(argv: Sequence[str] | None = None) -> int:
    """Generate text for a prompt and print it as it comes.

    Returns:
        The exit status: 0, 1 for an error of the caller's, 130 after Ctrl-C.
    """
    arguments = _parser().parse_args(argv)
    try:
        return _generate(arguments)
    except NanofnError as error:
        print(f"nanofn: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader has seen enough; closing stdout here keeps the interpreter from complaining at exit.
        sys.stderr.close()
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nanofn", description="Generate text from a language model.")
    parser.add_argument("prompt", nargs="+", help="one prompt, or several")
    parser.add_argument(
        "--model", metavar="FOLDER", help="a checkpoint; the default is the small model that comes along"
    )
    parser.add_argument("--max-tokens", type=int, metavar="N", help="most tokens to generate")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 always takes the likeliest token")
    parser.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same text")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object per prompt instead of streaming text"
    )
    parser.add_argument("--version", action="version", version=f"nanofn {__version__}")
    return parser


def _generate(arguments: argparse.Namespace) -> int:
    from nanofn.llm.llm import LLM

    named = {"max_tokens": arguments.max_tokens, "temperature": arguments.temperature, "seed": arguments.seed}
    with LLM(arguments.model) as llm:
        params = llm.get_default_sampling_params().replace(
            **{name: value for name, value in named.items() if value is not None}
        )
        if arguments.json:
            for output in llm.generate(arguments.prompt, params):
                print(json.dumps(output.to_dict()))
            return 0
        for prompt in arguments.prompt:
            print(prompt, end="", flush=True)
            for delta in llm.stream(prompt, params):
                print(delta.text, end="", flush=True)
            print()
    return 0
