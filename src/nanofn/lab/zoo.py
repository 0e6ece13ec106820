"""zoo: policies that look plausible, and what is wrong with most of them. For tests of the checker, and to learn from."""

from collections.abc import Callable, Iterable
from typing import Any

from attrs import frozen

from nanofn.request import SequenceId
from nanofn.state.decision import Decision
from nanofn.state.view import SequenceView, View


@frozen
class Plain:
    """A policy without memory.

    Attributes:
        name: What it is called.
        choose: The decision.
        init: None.
    """

    name: str
    choose: Callable[[View], Decision]
    init: None = None

    def decide(self, policy_state: None, view: View) -> tuple[None, Decision]:
        """Choose."""
        return policy_state, self.choose(view)


def all_of(order: Iterable[SequenceView]) -> tuple[tuple[SequenceId, int], ...]:
    """Grant everybody everything, in order; what does not fit is refused."""
    return tuple([(each.sequence_id, 1 << 20) for each in order])


def _fcfs(view: View, *, skip_blocked: bool = False, victim: Callable[[SequenceView], Any] | None = None) -> Decision:
    victims = None
    if victim is not None:
        victims = tuple([each.sequence_id for each in sorted(view.running, key=victim)])
    return Decision(all_of((*view.running, *view.waiting)), victims=victims, skip_blocked=skip_blocked)


def _preemptive(view: View, key: Callable[[SequenceView], Any]) -> Decision:
    """Rank everybody by a key; where a waiting one does not fit, those of lower rank are preempted, the last first."""
    order = sorted((*view.running, *view.waiting), key=key)
    free, rows = view.num_free_blocks, view.limits.max_num_seqs - len(view.running)
    preempt: list[SequenceId] = []
    for place, each in enumerate(order):
        if each.is_running:
            continue
        lower = [other for other in order[place + 1 :] if other.is_running and other.sequence_id not in preempt]
        needed = each.blocks_needed(min(each.num_tokens, view.limits.max_num_batched_tokens))
        while lower and (free < needed or rows < 1):
            victim = lower.pop()
            preempt.append(victim.sequence_id)
            free, rows = free + victim.num_blocks, rows + 1
        if free >= needed and rows >= 1:
            free, rows = free - needed, rows - 1
    kept = [each for each in order if each.sequence_id not in preempt]
    return Decision(all_of(kept), preempt=tuple(preempt), skip_blocked=True)


def _newcomers(view: View) -> Decision:
    """Whoever waits takes the blocks of the one that has run longest."""
    running = list(view.running)
    heads = view.waiting[:1]
    preempt: tuple[SequenceId, ...] = ()
    if heads and running:
        needed = heads[0].blocks_needed(min(heads[0].num_tokens, view.limits.max_num_batched_tokens))
        is_short = needed > view.num_free_blocks or len(running) == view.limits.max_num_seqs
        preempt = (running[0].sequence_id,) if is_short else ()
    kept = [each for each in running if each.sequence_id not in preempt]
    return Decision(all_of((*view.waiting, *kept)), preempt=preempt)


def _half_empty(view: View) -> Decision:
    """Start somebody only if half of the pool stays free."""
    spare = view.num_free_blocks - view.limits.num_blocks // 2
    starts = []
    for each in view.waiting:
        spare -= each.blocks_needed(min(each.num_tokens, view.limits.max_num_batched_tokens))
        if spare < 0:
            break
        starts.append(each)
    return Decision(all_of((*view.running, *starts)))


def _remaining(each: SequenceView) -> tuple[int, SequenceId]:
    return each.num_prompt_tokens + each.max_tokens - each.num_computed_tokens, each.sequence_id


strict_fcfs = Plain("strict fcfs", _fcfs)
skip_ahead = Plain("fcfs, skip what does not fit", lambda view: _fcfs(view, skip_blocked=True))
victim_oldest = Plain(
    "victim: the oldest", lambda view: _fcfs(view, skip_blocked=True, victim=lambda each: each.sequence_id)
)
victim_most_blocks = Plain(
    "victim: most blocks", lambda view: _fcfs(view, skip_blocked=True, victim=lambda each: -each.num_blocks)
)
victim_least_progress = Plain(
    "victim: least progress",
    lambda view: _fcfs(view, skip_blocked=True, victim=lambda each: each.num_computed_tokens),
)
shortest_prompt = Plain(
    "shortest prompt first",
    lambda view: Decision(
        all_of((*view.running, *sorted(view.waiting, key=lambda each: (each.num_prompt_tokens, each.sequence_id)))),
        skip_blocked=True,
    ),
)
shortest_remaining = Plain("shortest remaining first", lambda view: _preemptive(view, _remaining))
least_attained = Plain(
    "least attained service", lambda view: _preemptive(view, lambda each: (each.num_output_tokens, each.sequence_id))
)
last_come = Plain("last come, first served", lambda view: _preemptive(view, lambda each: -each.sequence_id))
newcomers = Plain("newcomers take over", _newcomers)
half_empty = Plain("only while half is free", _half_empty)

ZOO = (
    strict_fcfs,
    skip_ahead,
    victim_oldest,
    victim_most_blocks,
    victim_least_progress,
    shortest_prompt,
    shortest_remaining,
    least_attained,
    last_come,
    newcomers,
    half_empty,
)
"""The eleven of the liveness study."""
