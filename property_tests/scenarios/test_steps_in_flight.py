"""Plans that were launched before earlier ones came back: late results, reused rows and blocks, aborts in between."""

from random import Random

import pytest

from core.build import grants, planned, refusals, request, work
from core.rebuilt import rebuilt
from nanofn.lab.shadow import VOCAB_SIZE
from nanofn.policy import fcfs
from nanofn.policy.fcfs import Fcfs
from nanofn.schedule.view import view
from nanofn.state.events import PrefixCacheReset
from scenarios.row import row

ANY = tuple(range(VOCAB_SIZE))
"""Stop tokens that every sample hits."""


@row("E2")
def test_a_forced_preemption_with_nothing_in_flight_drops_no_token() -> None:
    """Drained, reset by force, resumed: the next result counts."""
    run = work(request(0, 5, 6))
    run.step(grants(0))
    run.deliver()
    for _ in range(2):
        run.apply(PrefixCacheReset(preempt_running=True))
    run.step(grants(0))
    run.deliver()
    assert len(run.outputs[0]) == 2
    run.drain(fcfs, depth=2)
    run.check_outputs()


@row("E3")
def test_an_abort_and_a_late_end_are_one_end() -> None:
    """Aborted while its last step flies, row and blocks given to another: one outcome, and the other one's own tokens."""
    run = work(request(0, 5, 6, stop_token_ids=ANY), max_num_seqs=1, num_blocks=4)
    run.step(grants(0))
    row_of_first = run.state.running[0].row
    run.abort(0)
    run.arrive(request(1, 13, 3))
    run.step(grants(1))
    assert run.state.running[0].row == row_of_first
    assert run.deliver() == ()
    run.drain(fcfs, depth=2)
    assert run.endings == {0: ("abort", 0), 1: ("length", 3)}
    run.check_all_returned()
    run.check_outputs()


@row("E4", "E9", "E12")
@pytest.mark.parametrize("shared", [0, 8])
def test_a_row_and_its_blocks_go_to_another_while_the_owners_last_step_flies(shared: int) -> None:
    """Steps run in plan order, so whoever gets the row writes after the step that was launched in vain."""
    run = work(request(0, 9, 6, stop_token_ids=ANY), max_num_seqs=1, num_blocks=3)
    run.step(grants(0))
    zombie = run.step(grants(0))
    run.deliver()
    assert run.endings == {0: ("stop", 1)}
    run.arrive(request(1, [*range(shared), *range(70, 79 - shared)], 4))
    step_plan = run.step(grants(1))
    assert planned(step_plan) == {1: (shared, 9 - shared)}
    assert step_plan.entries.row == zombie.entries.row
    assert set(zombie.entries.sequence_id) == {0}
    assert run.deliver() == ()
    run.drain(fcfs, depth=2)
    run.check_all_returned()
    run.check_outputs()


@row("E5", "E13")
@pytest.mark.parametrize("depth", [2, 3])
def test_a_plan_stays_what_it_was_when_it_was_made(depth: int) -> None:
    """An executor may read it late: at the end of a run with preemptions every plan equals a copy made at its launch."""
    run = work(*[request(number, 6, 9) for number in range(5)], num_blocks=8, max_model_len=16)
    kept = []
    while not run.is_idle:
        while len(run.state.in_flight) < depth and run.live_ids:
            _, decision = Fcfs(watermark=0).decide(None, view(run.state, 0))
            step_plan = run.step(decision)
            if step_plan.plan_id is None:
                break
            kept.append((step_plan, rebuilt(step_plan, Random(0)), hash(step_plan)))
        run.deliver()
    assert run.num_preemptions > 0
    assert all(step_plan == copy and hash(step_plan) == code for step_plan, copy, code in kept)
    run.check_outputs()


@row("E7")
def test_demand_counts_the_token_in_flight() -> None:
    """15 slots confirmed, one in flight, one to be planned: 17 slots are two blocks, and a full pool shows it a step early."""
    run = work(request(0, 15, 9), block_size=16, num_blocks=2)
    run.step(grants(0))
    run.step(grants(0))
    assert len(run.state.running[0].block_table) == 1
    assert planned(run.step(grants(0))) == {0: (16, 1)}
    assert len(run.state.running[0].block_table) == 2
    run = work(request(0, 15, 9), request(1, 16, 9), block_size=16, num_blocks=2)
    run.step(grants(0, 1))
    run.step(grants(0))
    assert refusals(run.step(grants((1, 0), 0))) == {0: "blocks"}


@row("E11")
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_sequence_left_out_of_a_step_goes_on_from_its_own_token(depth: int) -> None:
    """Three sequences, two tokens a step, another one left out each time: the input is always one's own last token."""
    run = work(*[request(number, 1, 12) for number in range(3)], max_num_batched_tokens=2)
    for number in range(9):
        run.step(grants(*[((number + place) % 3, 1) for place in range(2)]))
        if len(run.state.in_flight) == depth:
            run.deliver()
    run.drain(fcfs, depth=depth)
    run.check_outputs()
