"""Hypothesis strategies for limits, requests and decisions. Needs the extra `lab`."""

from typing import Any

from hypothesis import strategies as st

from nanofn.config import Limits
from nanofn.lab.shadow import EOS
from nanofn.request import Request, RequestId

SMALL = st.integers(0, 7)
"""A place among the live sequences, or a count."""


def _limits(block_size: int, num_blocks: int, length: int, **rest: Any) -> Limits:
    return Limits(block_size, num_blocks, max_model_len=min(length, block_size * num_blocks + 1), **rest)


def limits() -> st.SearchStrategy[Limits]:
    """Small pools, so that blocks, rows and tokens run out often."""
    return st.builds(
        _limits,
        st.integers(1, 4),
        st.integers(2, 8),
        st.integers(2, 24),
        max_num_seqs=st.integers(1, 4),
        max_num_batched_tokens=st.integers(1, 9),
        enable_prefix_caching=st.booleans(),
    )


def requests(request_id: int = 0) -> st.SearchStrategy[Request]:
    """Requests with common prefixes, some of which must be refused."""
    return st.builds(
        Request,
        st.just(RequestId(request_id)),
        prompt_token_ids=st.lists(st.sampled_from([1, 2]), max_size=9).map(tuple),
        max_tokens=st.integers(0, 8),
        min_tokens=st.integers(0, 3),
        n=st.integers(1, 3),
        stop_token_ids=st.sampled_from([(), (EOS,)]),
        cache_keys=st.sampled_from([(), (("salt", "a"),)]),
        reads_prefix_cache=st.booleans(),
        priority=st.integers(0, 2),
        client=st.sampled_from(["a", "b"]),
    )


def wishes() -> st.SearchStrategy[dict[str, Any]]:
    """Arguments of a `Decision` that names sequences by place: the machine puts in who lives."""
    return st.fixed_dictionaries(
        {
            "grants": st.lists(st.tuples(SMALL, st.integers(-1, 9)), max_size=6),
            "preempt": st.lists(SMALL, max_size=1),
            "victims": st.none() | st.lists(SMALL, max_size=4),
            "shed": st.just([]) | st.lists(SMALL, max_size=1),
            "skip_blocked": st.booleans(),
        }
    )
