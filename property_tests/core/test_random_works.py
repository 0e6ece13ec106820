"""Whole runs: whatever is decided and whatever goes wrong, no rule breaks and no output changes."""

import pytest

from nanofn.lab.random_work import random_work

NUM_WORKS = 2_000
SHARDS = 8


@pytest.mark.parametrize("shard", range(SHARDS))
def test_two_thousand_random_works(shard: int) -> None:
    """No violation, every block returned, outputs equal to an unlimited pool's: 2,000 works in all."""
    works = [random_work(seed) for seed in range(shard, NUM_WORKS, SHARDS)]
    assert sum(work.num_preemptions for work in works) > 100
    assert sum(len(work.endings) for work in works) > 500
