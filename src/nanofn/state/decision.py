"""Decision and Policy: a policy's wish, and the one function that makes it."""

from typing import Protocol, TypeVar

from attrs import frozen

from nanofn.request import SequenceId
from nanofn.state.view import View

P = TypeVar("P")


@frozen
class Decision:
    """Whom to run, in which order, whom to preempt. Any value is legal: `plan` takes from it what fits.

    Attributes:
        grants: (sequence, tokens at most), highest rank first, waiting and running alike; 0 tokens keep a rank.
        preempt: Running sequences that lose their blocks now, whatever is free.
        victims: Who yields, in order, when a running grant lacks blocks; None means the reverse of `grants`.
        shed: Sequences that end now with reason "abort".
        skip_blocked: Whether waiting grants after one that does not fit are still tried.
        wake_us: Decide again by then although nothing was granted: deliberate idling.
    """

    grants: tuple[tuple[SequenceId, int], ...] = ()
    preempt: tuple[SequenceId, ...] = ()
    victims: tuple[SequenceId, ...] | None = None
    shed: tuple[SequenceId, ...] = ()
    skip_blocked: bool = False
    wake_us: int | None = None


class Policy(Protocol[P]):
    """A scheduling policy: an initial value and a pure function.

    Attributes:
        init: First policy state: immutable and hashable. The loop holds it; it is never part of the engine's state.
    """

    @property
    def init(self) -> P:
        """First policy state."""
        ...

    def decide(self, policy_state: P, view: View) -> tuple[P, Decision]:
        """Choose. Same arguments, same answer: no clock, no randomness, no I/O, no memory but `policy_state`."""
        ...
