"""Work that is captured when it comes a second time: launched at first, so that kernels are loaded; then replayed."""

import logging
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch

from nanofn.device.capture import Captured, capture

logger = logging.getLogger("nanofn")

Result = TypeVar("Result")


class SecondUse:
    """Graphs by key.

    What is captured reads and writes the same memory at every replay, and does what Python decided at its capture: whatever
    else it depends on belongs into its key.

    Attributes:
        captures: Whether anything is captured at all.
    """

    def __init__(self, name: str, pool: Any) -> None:
        """Start with none.

        Args:
            name: What the work is, for messages.
            pool: The graphs' memory pool; None captures nothing.
        """
        self.captures = pool is not None
        self._name, self._pool = name, pool
        self._seen = set[Hashable]()
        self._captured = dict[Hashable, Captured[Any] | None]()

    def run(self, key: Hashable, work: Callable[[], Result]) -> Result:
        """Do some work. Where there is no room to capture it, it is launched as it is from then on, as slow as before.

        Args:
            key: What the work depends on.
            work: Kept if it is captured. It must not lead back here: memory in a circle is not given back at once.

        Returns:
            What `work` returns. A captured one's result is the same memory each time.
        """
        if not self.captures:
            return work()
        if key not in self._seen:
            self._seen.add(key)
            return work()
        if key not in self._captured:
            try:
                self._captured[key] = capture(work, self._pool)
            except torch.OutOfMemoryError as error:
                logger.warning("no memory to capture %s %s, they stay slow: %s", self._name, key, error)
                self._captured[key] = None
        captured: Captured[Result] | None = self._captured[key]
        return work() if captured is None else captured.replay()
