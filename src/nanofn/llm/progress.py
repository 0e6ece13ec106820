"""Progress of a call: finished requests, and how fast prompts and outputs go."""

import sys
import time
from typing import Any, Self

from tqdm.auto import tqdm

from nanofn.llm.summary import RunSummary

_EVERY_S = 0.2


class Progress:
    """A bar on a terminal, nothing elsewhere."""

    def __init__(self, num_requests: int, *, is_wanted: bool = True) -> None:
        is_shown = is_wanted and sys.stderr is not None and sys.stderr.isatty()
        self._bar: Any = tqdm(total=num_requests, desc="Generating", unit="request", disable=not is_shown)
        self._shown_at = time.monotonic()
        self._shown = (0, 0)

    def update(self, num_finished: int, summary: RunSummary) -> None:
        """Show how many requests are finished, and what the engine has done so far."""
        if self._bar.disable:
            return
        now, counts = time.monotonic(), (summary.num_prefill_tokens, summary.num_decode_tokens)
        elapsed = now - self._shown_at
        if elapsed >= _EVERY_S:
            prefill, decode = ((new - old) / elapsed for new, old in zip(counts, self._shown, strict=True))
            self._bar.set_postfix_str(f"prefill {prefill:,.0f} tok/s, decode {decode:,.0f} tok/s", refresh=False)
            self._shown_at, self._shown = now, counts
            self._bar.refresh()  # tqdm itself redraws only when a request finishes
        self._bar.update(num_finished - self._bar.n)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
