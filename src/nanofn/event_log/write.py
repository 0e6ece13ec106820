"""LogWriter: events to a file as they happen, a line each."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nanofn.config import Limits
from nanofn.event_log.encoding import encode, next_hash
from nanofn.schedule.transition import transition
from nanofn.state.engine_state import initial_state
from nanofn.state.events import Effect, Event, Launched

VERSION = 1
"""Of the format. A log of another version is refused."""


class LogWriter:
    """Writes a run's events. A line is with the operating system before the next event happens, so a crash loses none.

    Attributes:
        path: The file.
        plan_hash: Of all plans so far.
    """

    def __init__(self, path: str | Path, limits: Limits, **facts: Any) -> None:
        """Begin a log with the limits.

        Args:
            path: The file; one that is there is replaced.
            limits: The run's bounds.
            facts: What else a reader may want to know, such as the policy's name.

        Raises:
            OSError: The file cannot be written.
        """
        self.path = Path(path)
        self.plan_hash = ""
        self._file = self.path.open("w", encoding="utf-8", buffering=1)
        self._write({"nanofn_event_log": VERSION, "limits": encode(limits), **facts})

    def append(self, event: Event, effects: tuple[Effect, ...]) -> None:
        """Write an event that has just happened, and the hash of the plans where it made one.

        Raises:
            OSError: The file cannot be written.
        """
        line = encode(event)
        if effects and isinstance(effects[-1], Launched):
            self.plan_hash = line["plan_hash"] = next_hash(self.plan_hash, effects[-1].step_plan)
        self._write(line)

    def close(self) -> None:
        """Close the file. Twice is once."""
        self._file.close()

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")


def write_log(path: str | Path, limits: Limits, events: Iterable[Event], **facts: Any) -> None:
    """Write a run that is known only as its events: it is folded once more for the hashes of its plans."""
    writer, state = LogWriter(path, limits, **facts), initial_state(limits)
    for event in events:
        state, effects = transition(state, event)
        writer.append(event, effects)
    writer.close()
