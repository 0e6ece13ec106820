"""Scope: how much of the world an exploration lets in."""

from typing import Any

from attrs import frozen

from nanofn.config import Limits
from nanofn.lab.shadow import EOS
from nanofn.request import Request, TokenId
from nanofn.state.decision import Policy


@frozen
class Scope:
    """What may happen in an exploration.

    Attributes:
        limits: The bounds.
        requests: What may arrive, each any number of times; ids are given by the exploration.
        max_live: Most sequences alive at once.
        depth: Most plans in flight.
        max_grants: Most sequences that a decision names.
        tokens: What may be sampled.
        has_aborts: Whether requests are aborted and stop strings found.
        has_failures: Whether plans fail and the prefix cache is reset.
        policy: Who decides; None for everything that anybody could decide.
        max_states: Where to give up.
    """

    limits: Limits
    requests: tuple[Request, ...]
    max_live: int
    depth: int = 1
    max_grants: int = 3
    tokens: tuple[TokenId, ...] = (EOS, TokenId(1))
    has_aborts: bool = True
    has_failures: bool = False
    policy: Policy[Any] | None = None
    max_states: int = 1_000_000
