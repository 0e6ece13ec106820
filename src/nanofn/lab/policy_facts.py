"""policy_facts: what a policy can tell states apart by, with names taken out.

Two states are one to a policy if it sees the same facts in the same order, its own state means the same, and it is told the
same news. Counters that grow for ever are told apart up to a cap, and only if the policy reads them.
"""

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from nanofn.policy.by_key import ByKey
from nanofn.policy.fair import Fair, Service
from nanofn.policy.quantum import Quantum, Turns
from nanofn.request import SequenceId
from nanofn.state.decision import Policy
from nanofn.state.effects import Admitted, Finished, Preempted, Started, TokensCommitted
from nanofn.state.events import Effect
from nanofn.state.persistent import sorted_items
from nanofn.state.sequence import Sequence

Ranks = Mapping[SequenceId, int]


@frozen
class Caps:
    """Up to where counters are told apart; 0 for a policy that does not read them.

    Attributes:
        num_steps: Of `steps_since_output`.
        num_preemptions: Of `num_preemptions`.
    """

    num_steps: int = 0
    num_preemptions: int = 0


NO_COUNTERS = Caps()
"""For a policy that reads none."""


def facts_for_policy(each: Sequence, num_steps: int = 0, caps: Caps = NO_COUNTERS) -> tuple[Any, ...]:
    """Tell what a policy can know of a sequence and the core does not look at; `num_steps` is the state's."""
    request = each.request
    return (
        each.num_prompt_tokens,
        request.priority,
        request.client,
        repr(each.hint),
        repr((request.ttft_slo_us, request.tpot_slo_us, request.deadline_us, request.tags)),
        request.n,
        min(num_steps - each.last_output_step, caps.num_steps),
        min(each.epoch, caps.num_preemptions),
    )


def normal_policy_state(policy: Policy[Any], policy_state: Any, ranks: Ranks) -> Any:
    """Take the names out of a policy's state, so that states which mean the same become equal.

    A policy of one's own may have a method `normal(policy_state, ranks)` for that, with `ranks` the place by arrival of each
    live sequence: needed where its state holds sequence ids, or totals that grow for ever. Without one it is taken as it is.
    """
    own = getattr(policy, "normal", None)
    if own is not None:
        return own(policy_state, ranks)
    if isinstance(policy, ByKey):
        return None  # an index of the waiting ones: it follows from the view
    if isinstance(policy, Fair):
        return _charges(policy_state)
    if isinstance(policy, Quantum):
        turns: Turns[Any] = policy_state
        known = [(ranks[key], count) for key, count in turns.starts if key in ranks]
        return tuple(sorted(known)), normal_policy_state(policy.policy, turns.policy_state, ranks)
    inner = getattr(policy, "policy", None)
    if inner is not None and hasattr(inner, "decide"):
        return normal_policy_state(inner, policy_state, ranks)
    return policy_state


def _charges(service: Service) -> tuple[tuple[str, int], ...]:
    """What each client has got beyond the floor; what is below counts as the floor."""
    over = [(client, charge - service.floor) for client, charge in sorted_items(service.received)]
    return tuple([(client, charge) for client, charge in over if charge > 0])


def normal_news(
    policy: Policy[Any], news: tuple[Effect, ...], ranks: Ranks, *, tells_of_ended: bool = True
) -> tuple[Any, ...]:
    """Take the names out of what a policy is told next; one without a state has no use for news.

    What was refused or launched is left out. The ended are nobody, all alike; without `tells_of_ended` what concerns them
    alone is left out as well, since it grows without end where requests come and are aborted and nothing is decided.
    """
    if policy.init is None:
        return ()
    found: list[Any] = []
    for effect in news:
        kind = type(effect).__name__
        match effect:
            case Admitted(_, sequence_ids) | TokensCommitted(sequence_ids):
                who = tuple([ranks.get(each, -1) for each in sequence_ids])
            case Started(sequence_id) | Preempted(sequence_id) | Finished(sequence_id):
                who = (ranks.get(sequence_id, -1),)
            case _:
                continue
        if tells_of_ended or max(who) >= 0:
            found.append((kind, who, effect.num_cached_tokens if isinstance(effect, Started) else 0))
    return tuple(found)
