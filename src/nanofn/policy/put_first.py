"""put_first: a decision in which some sequences come before all others."""

from attrs import evolve

from nanofn.state.decision import Decision
from nanofn.state.view import SequenceView, View


def put_first(view: View, decision: Decision, chosen: list[SequenceView]) -> Decision:
    """Rank some sequences before all others.

    They get what they ask for, yield only to each other by rank, and nobody starts before those of them that wait. Others
    that run go on, so they end some day and make room; outputs are bounded.
    """
    ids = [each.sequence_id for each in chosen]
    grants = tuple([(sequence_id, view.limits.max_num_batched_tokens) for sequence_id in ids])
    grants += tuple([grant for grant in decision.grants if grant[0] not in ids])
    order = [key for key, _ in reversed(decision.grants)] if decision.victims is None else decision.victims
    others = [sequence_id for sequence_id in view.running.sequence_ids if sequence_id not in ids]
    victims = [sequence_id for sequence_id in dict.fromkeys(order) if sequence_id in others]
    victims += [sequence_id for sequence_id in reversed(others) if sequence_id not in victims]
    victims += reversed(ids)
    preempt = tuple([sequence_id for sequence_id in decision.preempt if sequence_id not in ids])
    shed = tuple([sequence_id for sequence_id in decision.shed if sequence_id not in ids])
    return evolve(decision, grants=grants, victims=tuple(victims), preempt=preempt, shed=shed, skip_blocked=False)
