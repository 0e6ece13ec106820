"""shortest_first: the least expected output first."""

from nanofn.policy.by_key import by_key
from nanofn.state.view import SequenceView


def expected_tokens_left(each: SequenceView) -> float:
    """Prompt tokens to compute and output tokens to come, by the hint where it is one number, else by `max_tokens`."""
    expected = each.hint if isinstance(each.hint, int | float) else each.max_tokens
    return each.num_prompt_tokens + max(expected, each.num_output_tokens) - each.num_computed_tokens


shortest_first = by_key(expected_tokens_left, skip_blocked=True)
"""Shortest remaining work first (Fu et al. 2024, arXiv:2408.15792, rank by a predictor's hint).

Good for the mean wait, bad for the longest: a long request waits while shorter ones keep coming.
Liveness: no bound; wrap it in `patience`. Each step looks at all waiting sequences.
"""
