"""Steady: what is known of running sequences that all decode, so that a step need not look at each of them again.

It is a memo: everything in it follows from the columns and the plans in flight, and it is no part of a state's equality.
A change of the running sequences other than a decode of all of them, or the end of some, drops it.
"""

from bisect import bisect_left
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from attrs import frozen

from nanofn.request import PlanId, SequenceId, TokenId

_MAX_GONE = 4
"""Members are renumbered when more than so many have gone: until then it would cost more than it saves."""


@frozen
class Cohort:
    """Sequences that decode together.

    Attributes:
        grants: One token for each, in admission order.
        stop_token_ids: Every token id that ends one of them; others may be among them.
        first_to_end: Place of the one that reaches its final length first.
        members: Number of tokens beyond full blocks, to the places of those that had so many when it was formed.
        gone: Places then of those that have ended since, ascending.
    """

    grants: tuple[tuple[SequenceId, int], ...]
    stop_token_ids: frozenset[TokenId]
    first_to_end: int
    members: Mapping[int, tuple[int, ...]]
    gone: tuple[int, ...] = ()


class Steady(NamedTuple):
    """A cohort on its way.

    Attributes:
        cohort: Who decodes together.
        num_tokens: Tokens that each has got since the cohort was formed.
        plans: Plans in flight, oldest first. Each decodes one token of each of them, and of nobody else alive.
    """

    cohort: Cohort
    num_tokens: int
    plans: tuple[PlanId, ...]

    def may_decode(self, num_tokens: tuple[int, ...], max_num_tokens: tuple[int, ...]) -> bool:
        """Whether each may decode another token now: none awaits a result."""
        if not self.plans:
            return True
        place = self.cohort.first_to_end
        return max_num_tokens[place] - num_tokens[place] > len(self.plans)

    def places_with(self, num_rest: int, block_size: int) -> tuple[int, ...]:
        """Find those that have so many tokens beyond full blocks now, modulo the block size."""
        members, gone = self.cohort.members.get((num_rest - self.num_tokens) % block_size, ()), self.cohort.gone
        if not gone or not members:
            return members
        return tuple([member - bisect_left(gone, member) for member in members if member not in gone])

    def without(self, places: list[int], first_to_end: int) -> "Steady":
        """Drop those at some places, ascending; `first_to_end` is the place of that one among those left."""
        cohort, grants, members = self.cohort, list(self.cohort.grants), list(places)
        for place in reversed(places):
            del grants[place]
        for earlier in cohort.gone:
            members = [member + (earlier <= member) for member in members]
        gone, groups = tuple(sorted([*cohort.gone, *members])), cohort.members
        if len(gone) > _MAX_GONE:
            gone, groups = (), _renumbered(groups, gone)
        left = Cohort(tuple(grants), cohort.stop_token_ids, first_to_end, groups, gone)
        return Steady(left, self.num_tokens, self.plans)


def _renumbered(members: Mapping[int, tuple[int, ...]], gone: tuple[int, ...]) -> Mapping[int, tuple[int, ...]]:
    """Drop those that have gone, and bring the places of the others up to date."""
    groups = {
        rest: tuple([member - bisect_left(gone, member) for member in group if member not in gone])
        for rest, group in members.items()
    }
    return MappingProxyType(groups)
