"""Which prefixes a plan in flight is writing."""

from nanofn.state.chunked import Chunked
from nanofn.state.engine_state import digests_between


def test_the_blocks_being_written_are_those_that_the_positions_touch() -> None:
    """From the block of the first position to that of the last one, as far as blocks are full of known tokens."""
    chain = Chunked().extend(range(5))
    for first, count, blocks in ((0, 1, {0}), (0, 4, {0}), (0, 5, {0, 1}), (2, 3, {0, 1}), (4, 4, {1}), (18, 10, {4})):
        assert digests_between(chain, first, count, 4) == blocks
    assert digests_between(chain, 20, 3, 4) == set()
