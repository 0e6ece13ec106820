"""read_log: a file to the limits and the events of a run."""

import json
from pathlib import Path
from typing import Any

from attrs import frozen

from nanofn.config import Limits
from nanofn.errors import LogError
from nanofn.event_log.encoding import decode
from nanofn.event_log.write import VERSION
from nanofn.state.events import Event


@frozen
class Logged:
    """One event of a log.

    Attributes:
        line: Its line in the file, from 1.
        event: What happened.
        plan_hash: Of all plans so far; None where the event made no plan.
    """

    line: int
    event: Event
    plan_hash: str | None


@frozen
class Log:
    """A run, read from a file.

    Attributes:
        limits: The run's bounds.
        facts: What else was noted at its beginning.
        logged: The events, in order.
        is_torn: Whether the last line was cut off; it is left out.
    """

    limits: Limits
    facts: dict[str, Any]
    logged: tuple[Logged, ...]
    is_torn: bool

    @property
    def events(self) -> tuple[Event, ...]:
        """The events alone."""
        return tuple([each.event for each in self.logged])


def read_log(path: str | Path) -> Log:
    """Read a log, to its last whole line.

    Raises:
        LogError: There is no such file, it is no event log, of another version, or a line is not as it was written.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LogError(str(path), 0, str(error)) from error
    lines = text.split("\n")
    rest = lines.pop()
    header = _parsed(path, 1, lines[0]) if lines else {}
    if header.get("nanofn_event_log") != VERSION:
        found = header.get("nanofn_event_log", "none")
        raise LogError(str(path), 1, f"it is no event log of version {VERSION} (version found: {found})")
    del header["nanofn_event_log"]
    limits = _decoded(path, 1, header.pop("limits", None))
    if not isinstance(limits, Limits):
        raise LogError(str(path), 1, "it names no limits")
    logged = []
    for number, line in enumerate(lines[1:], 2):
        values = _parsed(path, number, line)
        plan_hash = values.pop("plan_hash", None)
        event = _decoded(path, number, values)
        if not isinstance(event, Event):
            raise LogError(str(path), number, f"{type(event).__name__} is no event")
        logged.append(Logged(number, event, plan_hash))
    return Log(limits, header, tuple(logged), is_torn=bool(rest))


def _parsed(path: str | Path, number: int, line: str) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except ValueError as error:
        raise LogError(str(path), number, f"it is not JSON ({error})") from error
    if not isinstance(values, dict):
        raise LogError(str(path), number, f"it is {type(values).__name__} in JSON, not an object")
    return values


def _decoded(path: str | Path, number: int, values: Any) -> Any:
    try:
        return decode(values)
    except ValueError as error:
        raise LogError(str(path), number, str(error)) from error
