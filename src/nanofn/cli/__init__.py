"""The command line: `nanofn "prompt"`, and commands by name. Each command's module is imported when it is called."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from nanofn.errors import NanofnError

COMMANDS = {
    "chat": "nanofn.cli.chat",
    "info": "nanofn.cli.info",
    "policy": "nanofn.cli.policy",
    "replay": "nanofn.cli.replay",
}
"""Commands by name; anything else is a prompt. Each module has a `run(arguments) -> exit status`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, or generate text for a prompt.

    Returns:
        The exit status: 0, 1 for an error that says what to do, 130 after Ctrl-C.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments[0] if arguments else ""
    module = COMMANDS.get(name)
    try:
        run = import_module(module or "nanofn.cli.generate").run
        status: int = run(arguments[1:] if module else arguments)
    except NanofnError as error:
        sys.stderr.write(f"nanofn: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return 130
    except BrokenPipeError:
        # The reader has seen enough. Python would complain at exit, when it flushes what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status
