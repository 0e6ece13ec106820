"""Steady: what is known of running sequences that all decode, so that a step need not look at each of them again.

It is a memo: everything in it follows from the columns and the plans in flight, and it is no part of a state's equality.
A change of the running sequences other than a decode of all of them, or the end of some, drops it.
"""

from bisect import bisect_left
from collections.abc import Mapping

from attrs import frozen

from nanofn.request import PlanId, SequenceId, TokenId


@frozen
class Cohort:
    """What stays as it is while the same sequences decode together, or some of them after others have ended.

    Attributes:
        stop_token_ids: Every token id that ends one of them; others may be among them.
        plans_ahead: True only if all of them may be planned before their last token is known.
        members: Number of tokens beyond full blocks, to the places of those that had so many when it was formed.
    """

    stop_token_ids: frozenset[TokenId]
    plans_ahead: bool
    members: Mapping[int, tuple[int, ...]]


@frozen
class Steady:
    """A cohort on its way.

    Attributes:
        cohort: What does not change.
        grants: One token for each that is left, in admission order.
        first_to_end: Place of the one that reaches its final length first.
        num_tokens: Tokens that each has got since the cohort was formed.
        gone: Places in the cohort of those that have ended since, ascending.
        plans: Plans in flight, oldest first. Each decodes one token of each of them, and of nobody else alive.
    """

    cohort: Cohort
    grants: tuple[tuple[SequenceId, int], ...]
    first_to_end: int
    num_tokens: int = 0
    gone: tuple[int, ...] = ()
    plans: tuple[PlanId, ...] = ()

    def places_with(self, num_rest: int, block_size: int) -> tuple[int, ...]:
        """Find those that have so many tokens beyond full blocks now, modulo the block size."""
        members, gone = self.cohort.members.get((num_rest - self.num_tokens) % block_size, ()), self.gone
        if not gone:
            return members
        return tuple([member - bisect_left(gone, member) for member in members if member not in gone])

    def launched(self, plan_id: PlanId) -> "Steady":
        """One more plan is in flight."""
        return Steady(self.cohort, self.grants, self.first_to_end, self.num_tokens, self.gone, (*self.plans, plan_id))

    def committed(self) -> "Steady":
        """The oldest plan's tokens are there."""
        num_tokens = self.num_tokens + 1
        return Steady(self.cohort, self.grants, self.first_to_end, num_tokens, self.gone, self.plans[1:])

    def without(self, places: list[int], first_to_end: int) -> "Steady":
        """Drop those at some places, ascending; `first_to_end` is the place of that one among those left."""
        grants, members = list(self.grants), list(places)
        for place in reversed(places):
            del grants[place]
        for earlier in self.gone:
            members = [member + (earlier <= member) for member in members]
        gone = tuple(sorted([*self.gone, *members]))
        return Steady(self.cohort, tuple(grants), first_to_end, self.num_tokens, gone, self.plans)
