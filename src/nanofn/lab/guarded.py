"""Guarded: a policy that is watched while it decides. What it must not do becomes a `PolicyFault` that says so."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from attrs import field, frozen

from nanofn.lab.reads import watched
from nanofn.state.decision import Decision, Policy
from nanofn.state.view import View

MAX_SECONDS = 2.0
"""A decision about a handful of sequences takes well under a millisecond."""


class PolicyFault(Exception):  # noqa: N818  a fault of the policy, found on purpose
    """A policy did what no policy may do."""


class _TooSlowError(BaseException):
    """Not an `Exception`, so that a policy that catches those cannot go on."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `PolicyFault` in the block if it takes longer; only on the main thread and where there are timers."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> NoReturn:
        raise _TooSlowError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except _TooSlowError:
        raise PolicyFault(f"still not done after {seconds:g} s: an endless loop?") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@frozen(eq=False)
class Guarded:
    """Another policy, asked twice each time; both answers must be the same and lawful.

    Attributes:
        policy: The policy.
        names: Gathers the names of all that it reads of a view.
    """

    policy: Policy[Any]
    names: set[str] = field(factory=set)

    @property
    def init(self) -> Any:
        """The policy's own."""
        return self.policy.init

    def decide(self, policy_state: Any, view: View) -> tuple[Any, Decision]:
        """Let the policy decide.

        Raises:
            PolicyFault: It raised, took too long, returned something else, changed its state, or decided differently when
                asked again.
        """
        before = fingerprint_of(policy_state)
        with time_limit(MAX_SECONDS):
            answer = self._asked(policy_state, view)
            again = self._asked(policy_state, watched(view, self.names))
        _require_lawful(answer)
        _require_lawful(again)
        if again[0] != answer[0]:
            raise PolicyFault(
                f"asked twice about the same view, it remembers {_shown(answer[0])} and then {_shown(again[0])}; does the "
                "policy state compare by value?"
            )
        if again != answer:
            raise PolicyFault(f"asked twice about the same view, it decided {answer[1]} and then {again[1]}")
        if fingerprint_of(policy_state) != before:
            raise PolicyFault(f"decide changed the policy state it was given: {before} became {policy_state!r}")
        new_state, decision = answer
        return new_state, decision

    def _asked(self, policy_state: Any, view: View) -> Any:
        try:
            return self.policy.decide(policy_state, view)
        except Exception as error:
            line = _line(error)
            raise PolicyFault(f"decide raised {type(error).__name__}: {error}{line}") from error


def fingerprint_of(policy_state: Any) -> str:
    """What a policy state looks like: a change in place shows."""
    return repr(policy_state)


def _line(error: Exception) -> str:
    """Name the line of the policy's file that raised."""
    trace, found = error.__traceback__, ""
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").startswith("nanofn_policy_"):
            found = f" (line {trace.tb_lineno})"
        trace = trace.tb_next
    return found


def _require_lawful(answer: Any) -> None:
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise PolicyFault(f"decide returned {_shown(answer)}; it must return (policy_state, Decision)")
    policy_state, decision = answer
    if not isinstance(decision, Decision):
        raise PolicyFault(f"decide returned (policy_state, {_shown(decision)}); the second must be a Decision")
    for what, value in (("the policy state", policy_state), ("the decision", decision)):
        try:
            hash(value)
        except TypeError as error:
            raise PolicyFault(f"{what} is not immutable ({error}): {_shown(value)}") from None
    named = (*[key for key, _ in decision.grants], *decision.preempt, *decision.shed, *(decision.victims or ()))
    numbers = (*named, *[count for _, count in decision.grants])
    if any(not isinstance(number, int) for number in numbers):
        raise PolicyFault(f"a decision names sequences and counts tokens by integers: {_shown(decision)}")


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) < 200 else text[:200] + '...'}"
