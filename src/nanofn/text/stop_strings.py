"""StopStrings: finds where an output ends by its text, in pieces as they come."""

from collections.abc import Sequence


class StopStrings:
    """Looks for the stop string that ends first in a growing text; of those that end together, the longest.

    Attributes:
        text: What has come so far, what follows a match included.
        found: The stop string that ended the text, or None.
        end: Where the output's text ends, if one was found: before the stop string, or after it if it is included.
    """

    def __init__(self, stops: Sequence[str], *, is_included: bool) -> None:
        self.text = ""
        self.found: str | None = None
        self.end = 0
        self._stops = sorted(stops, key=len, reverse=True)
        self._is_included = is_included
        self._first = 0

    def push(self, piece: str, *, may_stop: bool = True) -> bool:
        """Take further text; returns whether a stop string has been found.

        Args:
            piece: The text.
            may_stop: False while `min_tokens` is not reached: a match must then end, and begin, in later text.
        """
        if self.found is not None:
            return True
        before, self.text = len(self.text), self.text + piece
        if not may_stop:
            self._first = len(self.text)
            return False
        ends = []
        for stop in self._stops:
            start = self.text.find(stop, max(self._first, before - len(stop) + 1))
            if start >= 0:
                ends.append((start + len(stop), start, stop))
        if not ends:
            return False
        end, start, self.found = min(ends)
        self.end = end if self._is_included else start
        return True

    @property
    def num_certain(self) -> int:
        """Characters that belong to the output whatever comes next: the rest may begin a stop string."""
        if self.found is not None:
            return self.end
        longest = max(map(len, self._stops), default=1)
        for start in range(max(self._first, len(self.text) - longest + 1), len(self.text)):
            rest = self.text[start:]
            if any(stop.startswith(rest) for stop in self._stops):
                return start
        return len(self.text)
