"""Holds a conversation with the embedded model in a terminal and draws it: `python docs/terminal.py` writes terminal.svg."""

import os
import pty
import re
import subprocess
import sys
import textwrap
from html import escape
from pathlib import Path

COMMAND = ("nanofn", "chat", "--temperature", "0")
TYPED = (
    "Hello, how are you?",
    "My name is Ada.",
    "What is the opposite of early?",
    "What is my name?",
    "Tell me a story about a hedgehog.",
)
PROMPT = b"\n> "
COLUMNS, FONT_SIZE, LINE_HEIGHT, MARGIN = 100, 14, 20, 16
CHARACTER_WIDTH = 0.6 * FONT_SIZE


def record() -> str:
    """Run the command in a terminal of its own, type each line when it is asked for, and return all that was shown."""
    ours, theirs = pty.openpty()
    program = (sys.executable, "-m", *COMMAND)
    variables = os.environ | {"TERM": "dumb", "COLUMNS": "1000"}  # a line stays a line
    with subprocess.Popen(program, stdin=theirs, stdout=theirs, stderr=theirs, env=variables):
        os.close(theirs)
        shown, typed = b"", [*TYPED, "/exit"]
        while piece := _read(ours):
            shown += piece
            if shown.replace(b"\r", b"").endswith(PROMPT):
                os.write(ours, typed.pop(0).encode() + b"\n")
    os.close(ours)
    text = shown.decode().replace("\r", "").removesuffix("> /exit\n")
    return f"$ {' '.join(COMMAND)}\n{text}"


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # Linux says so when the program has ended
        return b""


def draw(text: str) -> str:
    """Draw a terminal that shows a text. What was typed is bold."""
    lines = [
        (piece, line.startswith(("$ ", "> ")))
        for line in text.splitlines()
        for piece in textwrap.wrap(line, COLUMNS) or [""]
    ]
    width, height = 2 * MARGIN + COLUMNS * CHARACTER_WIDTH, 2 * MARGIN + len(lines) * LINE_HEIGHT
    rows = [
        f'<text x="{MARGIN}" y="{MARGIN + LINE_HEIGHT * (row + 0.75):g}" class="{"typed" if is_typed else "shown"}">'
        f"{escape(piece, quote=False)}</text>"
        for row, (piece, is_typed) in enumerate(lines)
    ]
    style = (
        f"text{{font:{FONT_SIZE}px monospace;fill:#d8dee9;white-space:pre}}.typed{{font-weight:bold;fill:#fff}}"
        "rect{fill:#20242c}"
    )
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}">',
            f"<style>{style}</style>",
            '<rect width="100%" height="100%" rx="8"/>',
            *rows,
            "</svg>\n",
        )
    )


def read_drawn(svg: str) -> str:
    """Read the words of a drawing back, lines joined."""
    found = re.findall(r"<text [^>]*>(.*?)</text>", svg)
    return " ".join(found).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


if __name__ == "__main__":
    target = Path(__file__).with_suffix(".svg")
    target.write_text(draw(record()), encoding="utf-8")
    print(target)
