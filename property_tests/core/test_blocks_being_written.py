"""Which prefixes a plan in flight is writing."""

from core.build import grants, planned, refusals, request, work
from nanofn.schedule.view import view
from nanofn.state.chunked import Chunked
from nanofn.state.engine_state import digests_between


def test_the_blocks_being_written_are_those_that_the_positions_touch() -> None:
    """From the block of the first position to that of the last one, as far as blocks are full of known tokens."""
    chain = Chunked().extend(range(5))
    for first, count, blocks in ((0, 1, {0}), (0, 4, {0}), (0, 5, {0, 1}), (2, 3, {0, 1}), (4, 4, {1}), (18, 10, {4})):
        assert digests_between(chain, first, count, 4) == blocks
    assert digests_between(chain, 20, 3, 4) == set()


def test_a_later_block_of_a_prompt_is_waited_for_as_well() -> None:
    """The first block is published, the second one is being written: who needs it next starts after that."""
    run = work(request(0, [5] * 13), request(1, [5] * 13))
    run.step(grants((0, 4)))
    run.deliver()
    run.step(grants((0, 4)))
    assert view(run.state, 0).waiting[0].is_prefix_pending
    assert refusals(run.step(grants(1))) == {1: "pending_prefix"}
    run.deliver()
    assert planned(run.step(grants(1))) == {1: (8, 5)}
