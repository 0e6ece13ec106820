"""The summary of a run: how fast it went, how full the steps and the pool were."""

from attrs import define, frozen

from nanofn.llm.clock import now_us
from nanofn.state.engine_state import EngineState
from nanofn.state.step_plan import StepPlan


@frozen
class RunSummary:
    """What an engine did since it was made.

    Attributes:
        num_steps: Steps launched.
        num_prefill_tokens: Tokens computed in entries of more than one, recomputed ones included.
        num_decode_tokens: Tokens computed in entries of one.
        prefill_seconds: Time after the launch of steps with any prefill, until the next launch or result.
        decode_seconds: The same for the other steps.
        mean_batch_size: Sequences per step.
        max_batch_size: Most sequences in a step.
        peak_block_use: Largest share of the K/V pool held at once.
        num_preemptions: How often a sequence lost its blocks.
    """

    num_steps: int
    num_prefill_tokens: int
    num_decode_tokens: int
    prefill_seconds: float
    decode_seconds: float
    mean_batch_size: float
    max_batch_size: int
    peak_block_use: float
    num_preemptions: int

    def __str__(self) -> str:
        prefill = self.num_prefill_tokens / max(self.prefill_seconds, 1e-9)
        decode = self.num_decode_tokens / max(self.decode_seconds, 1e-9)
        return (
            f"{self.num_steps:,} steps: {self.num_prefill_tokens:,} tokens prefilled at {prefill:,.0f} tok/s, "
            f"{self.num_decode_tokens:,} decoded at {decode:,.0f} tok/s, {self.mean_batch_size:.1f} sequences a step "
            f"(most {self.max_batch_size}), {self.peak_block_use:.0%} of the K/V blocks held at most, "
            f"{self.num_preemptions:,} preemptions"
        )


@define(eq=False)
class Tally:
    """Adds a run up, step by step."""

    num_steps: int = 0
    num_entries: int = 0
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0
    prefill_us: int = 0
    decode_us: int = 0
    max_batch_size: int = 0
    peak_block_use: float = 0.0
    num_preemptions: int = 0
    _last_us: int | None = None
    _has_prefill: bool = False

    def launched(self, step_plan: StepPlan, state: EngineState) -> None:
        """Count a plan that has just been made of `state`."""
        counts = step_plan.entries.num_tokens
        if not counts:
            return
        num_decodes = counts.count(1)
        self.num_steps += 1
        self.num_entries += len(counts)
        self.num_decode_tokens += num_decodes
        self.num_prefill_tokens += sum(counts) - num_decodes
        self.max_batch_size = max(self.max_batch_size, len(counts))
        self.peak_block_use = max(self.peak_block_use, 1 - state.pool.num_free / state.limits.num_blocks)
        self._pass_time(now_us(), is_idle=False)
        self._has_prefill = num_decodes < len(counts)

    def committed(self, state: EngineState) -> None:
        """Count the time until a result; an idle engine's time is nobody's."""
        self._pass_time(now_us(), is_idle=not state.in_flight)

    def _pass_time(self, now: int, *, is_idle: bool) -> None:
        if self._last_us is not None:
            elapsed = now - self._last_us
            self.prefill_us += elapsed if self._has_prefill else 0
            self.decode_us += 0 if self._has_prefill else elapsed
        self._last_us = None if is_idle else now

    def summary(self) -> RunSummary:
        """Freeze the sums."""
        return RunSummary(
            num_steps=self.num_steps,
            num_prefill_tokens=self.num_prefill_tokens,
            num_decode_tokens=self.num_decode_tokens,
            prefill_seconds=self.prefill_us / 1e6,
            decode_seconds=self.decode_us / 1e6,
            mean_batch_size=self.num_entries / max(self.num_steps, 1),
            max_batch_size=self.max_batch_size,
            peak_block_use=self.peak_block_use,
            num_preemptions=self.num_preemptions,
        )
