"""scopes: the named scopes that the core and policies are checked at.

A scope is small enough to be searched whole and large enough for what it is for. Pressure on memory needs blocks of one
token, or sequences of several blocks: with blocks of two tokens and short sequences nobody ever holds two blocks.
"""

from collections.abc import Mapping
from itertools import product
from types import MappingProxyType
from typing import Any

from attrs import evolve

from nanofn.config import Limits
from nanofn.lab.graph import Arrivals
from nanofn.lab.scope import Scope
from nanofn.lab.shadow import EOS
from nanofn.request import Request, RequestId, TokenId
from nanofn.state.decision import Policy


def _request(*prompt: int, out: int, **facts: Any) -> Request:
    return Request(RequestId(0), tuple(map(TokenId, prompt)), out, stop_token_ids=(EOS,), **facts)


def _limits(size: int, num_blocks: int, num_seqs: int, budget: int, length: int, *, shares: bool = False) -> Limits:
    return Limits(size, num_blocks, num_seqs, budget, length, enable_prefix_caching=shares)


SMALL: Mapping[str, Scope] = MappingProxyType(
    {
        "memory": Scope(_limits(1, 4, 3, 4, 5), (_request(1, out=3), _request(1, 1, out=3)), 2),
        "rows": Scope(_limits(2, 4, 2, 3, 4), (_request(1, out=2), _request(1, 1, 1, out=1)), 3, has_aborts=False),
        "sharing": Scope(_limits(1, 3, 2, 3, 4, shares=True), (_request(1, out=2), _request(1, 2, out=2)), 2),
        "children": Scope(_limits(1, 4, 2, 4, 4, shares=True), (_request(1, out=2, n=2),), 2, has_failures=True),
        "depth 2": Scope(_limits(1, 3, 2, 3, 4, shares=True), (_request(1, out=2), _request(1, 1, out=1)), 2, depth=2),
        "min_tokens": Scope(
            _limits(1, 3, 2, 2, 4), (_request(1, out=2), _request(1, 1, out=2, min_tokens=2)), 2, depth=2
        ),
    }
)
"""For every change: under 40 s in all."""

LARGE: Mapping[str, Scope] = MappingProxyType(
    {
        "three sequences": Scope(_limits(2, 4, 3, 4, 4), (_request(1, out=3), _request(1, 1, 1, out=1)), 3),
        "length 6": Scope(_limits(2, 3, 2, 4, 6), (_request(1, out=3), _request(1, 1, 1, out=3)), 2, depth=2),
        "sharing and failures": Scope(
            _limits(1, 4, 2, 3, 4, shares=True), (_request(1, out=2), _request(1, 2, out=2)), 2, has_failures=True
        ),
        "sharing and depth 2": Scope(
            _limits(1, 4, 2, 4, 4, shares=True),
            (_request(1, out=2), _request(1, 2, out=2)),
            2,
            depth=2,
            has_failures=True,
        ),
        "sharing among three": Scope(
            _limits(1, 4, 2, 3, 3, shares=True), (_request(1, 1, out=1), _request(2, out=2)), 3, has_aborts=False
        ),
        "depth 3": Scope(_limits(1, 3, 2, 3, 4, shares=True), (_request(1, out=3),), 2, depth=3),
    }
)
"""For `nox -s prove`: minutes."""


def _arrivals(limits: Limits, prompts: tuple[int, ...], outputs: tuple[int, ...]) -> Arrivals:
    kinds = [Request(RequestId(0), (TokenId(1),) * length, out) for length, out in product(prompts, outputs)]
    return Arrivals(limits, tuple(kinds), 3)


_MIXED = (
    evolve(_request(1, out=2), priority=0, client="a"),
    evolve(_request(1, 1, out=3), priority=1, client="b"),
)
_PREFIXES = (_request(1, 1, 1, out=1), _request(2, out=2))

LIVENESS: Mapping[str, Arrivals] = MappingProxyType(
    {
        "A: blocks of 2": _arrivals(_limits(2, 4, 3, 4, 9), (1, 3), (1, 3)),
        "B: blocks of 1": _arrivals(_limits(1, 4, 3, 4, 5), (1, 2), (1, 3)),
        "C: long and short": _arrivals(_limits(2, 5, 3, 4, 11), (1, 5), (1, 4)),
        "D: priorities and clients": Arrivals(_limits(1, 4, 3, 4, 5), _MIXED, 3),
        "E: shared prefixes": Arrivals(_limits(1, 4, 1, 4, 5, shares=True), _PREFIXES, 3),
    }
)
"""Where policies are judged: whatever arrives, whenever, three sequences alive at most."""


def safety_of(policy: Policy[Any]) -> dict[str, Scope]:
    """Name the scopes at which a policy's own decisions are followed: with aborts, failures and two plans in flight."""
    kinds = (_request(1, out=2), _request(1, 2, out=2, priority=1, client="b"))
    most = 12_000
    return {
        "memory": Scope(_limits(1, 4, 3, 4, 5), kinds, 3, policy=policy, max_states=most),
        "sharing": Scope(_limits(1, 3, 2, 3, 4, shares=True), kinds, 2, policy=policy, max_states=most),
        "failures": Scope(_limits(1, 3, 2, 3, 4), kinds, 2, has_failures=True, policy=policy, max_states=most),
        "depth 2": Scope(_limits(1, 3, 2, 4, 4), kinds, 2, depth=2, policy=policy, max_states=most),
    }
