"""The life of a sequence as it was observed: which event moves it from which phase to which, and a picture of that.

    nox -s diagram      # writes docs/state_machine.svg and the table in docs/state_machine.md

Nothing here says what may happen. Random works are replayed, and each change of a sequence's phase is noted down.
"""

from collections.abc import Iterator
from html import escape
from itertools import pairwise
from pathlib import Path

from nanofn.lab.random_work import random_work
from nanofn.lab.work import Work
from nanofn.schedule.transition import transition
from nanofn.state.engine_state import EngineState, initial_state

DOCS = Path(__file__).resolve().parents[2] / "docs"
PICTURE, PAGE = DOCS / "state_machine.svg", DOCS / "state_machine.md"
BEGIN, END = "<!-- observed phases: begin -->\n", "<!-- observed phases: end -->"
NUM_WORKS = 300
Changes = dict[tuple[str, str], list[str]]
"""(phase before, phase after) to the kinds of events that were seen to do that."""

CENTRES = {"new": (70, 60), "waiting": (290, 60), "running": (630, 60), "ended": (460, 250)}
WIDTH, HEIGHT, LINE = 740, 290, 15
TIP = (
    '<marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path d="M0 0L8 4L0 8z"/></marker>'
)
LABELS = {
    ("new", "waiting"): (125, 100),
    ("waiting", "running"): (400, 30),
    ("running", "waiting"): (400, 92),
    ("waiting", "ended"): (205, 160),
    ("running", "ended"): (570, 160),
}


def phases(state: EngineState) -> dict[int, str]:
    """The phase of each live sequence."""
    running = dict.fromkeys(state.running.sequence_id, "running")
    return running | {sequence_id: "waiting" for sequence_id, _ in state.waiting}


def states(work: Work) -> Iterator[EngineState]:
    """The states that a work went through, from the initial one on."""
    state = initial_state(work.state.limits)
    yield state
    for event in work.log:
        state, _ = transition(state, event)
        yield state


def observed(seeds=range(NUM_WORKS)) -> Changes:
    """Replay random works and collect every change of phase."""
    seen: dict[tuple[str, str], set[str]] = {}
    for seed in seeds:
        work = random_work(seed, checked=False)
        for event, (before, after) in zip(work.log, pairwise(map(phases, states(work))), strict=True):
            for sequence_id in before.keys() | after.keys():
                change = before.get(sequence_id, "new"), after.get(sequence_id, "ended")
                if change[0] != change[1]:
                    seen.setdefault(change, set()).add(type(event).__name__)
    return {change: sorted(seen[change]) for change in sorted(seen)}


def table(changes: Changes) -> str:
    """A Markdown table."""
    rows = [
        f"| {one} | {other} | {', '.join(f'`{kind}`' for kind in kinds)} |" for (one, other), kinds in changes.items()
    ]
    return "\n".join(["| from | to | by |", "|---|---|---|", *rows, ""])


def picture(changes: Changes) -> str:
    """An SVG. A change that has no place in the picture is an error."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f"<defs>{TIP}</defs>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for change, kinds in changes.items():
        (x, y), (to_x, to_y) = CENTRES[change[0]], CENTRES[change[1]]
        if y == to_y:
            side = 1 if to_x > x else -1
            ends = x + 50 * side, y - 8 * side, to_x - 50 * side, y - 8 * side
        else:
            ends = x, y + 20, to_x + (x - to_x) // 6, to_y - 20
        parts.append('<line x1="{}" y1="{}" x2="{}" y2="{}" stroke="black" marker-end="url(#tip)"/>'.format(*ends))
        for line, kind in enumerate(kinds):
            left, top = LABELS[change]
            parts.append(f'<text x="{left}" y="{top + LINE * line}">{escape(kind)}</text>')
    for name, (x, y) in CENTRES.items():
        parts.append(f'<rect x="{x - 50}" y="{y - 20}" width="100" height="40" rx="8" fill="white" stroke="black"/>')
        parts.append(f'<text x="{x}" y="{y + 5}" text-anchor="middle" font-size="15">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def documented() -> str:
    """The table that the page has now."""
    return PAGE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0]


if __name__ == "__main__":
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + table(observed()) + END + rest.partition(END)[2], "utf-8")
    PICTURE.write_text(picture(observed()), "utf-8")
