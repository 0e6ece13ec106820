"""The memo of steady steps is there when it should be: without it everything works, at several times the cost."""

import pytest
from attrs import evolve

from core.build import grants, request, work
from nanofn.schedule import commit as commit_module, plan as plan_module
from nanofn.state.decision import Decision
from nanofn.state.running import Running


def decoding(**options):
    """A work with two sequences that have had their first output tokens."""
    run = work(request(0, 3, max_tokens=20), request(1, 6, max_tokens=20), **options)
    while not all(run.outputs.values()):
        run.step(grants(0, 1))
        run.deliver()
    return run


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_memo_is_there_as_soon_as_all_decode(depth: int) -> None:
    """With any number of plans in flight that decode just them: it is made at once, and names those plans."""
    run = decoding()
    for _ in range(depth):
        run.step(grants((0, 1), (1, 1)))
    assert run.state.running.steady.plans == tuple(range(1, depth + 1))
    # Without the memo the next plan looks at everything, and makes it anew.
    run.state = evolve(run.state, running=Running(run.state.running.columns))
    run.step(grants((0, 1), (1, 1)))
    assert run.state.running.steady.plans == tuple(range(1, depth + 2))
    for _ in range(depth + 1):
        run.deliver()
    assert run.state.running.steady.plans == ()


def test_wishes_for_more_than_a_token_form_no_memo() -> None:
    """What the memo hands on as everybody's grant is one token each."""
    run = work(request(0, 1), request(1, 1))
    for wish in (1, 5, 5):
        run.step(grants((0, 1), (1, wish)))
        run.deliver()
    assert run.state.running.steady is None
    assert run.state.running.decodes == ((0, 1), (1, 1))


def test_first_outputs_in_flight_form_no_memo() -> None:
    """A sequence whose first output token is due is committed the long way, which notes down its time."""
    run = work(request(0, 3), request(1, 3))
    run.step(grants(0, 1))
    run.step(grants((0, 1), (1, 1)))
    assert run.state.running.steady is None


@pytest.mark.parametrize("end", ["abort", "preempt"])
def test_the_memo_outlives_an_end_and_not_a_preemption(end: str) -> None:
    """Whoever ends leaves the others decoding; whoever starts again changes them."""
    run = decoding()
    run.step(grants((0, 1), (1, 1)))
    if end == "abort":
        run.abort(0)
        assert run.state.running.steady.cohort.grants == ((1, 1),)
        assert run.state.running.steady.plans == (1,)
    else:
        run.step(Decision(preempt=(0,)))
        assert run.state.running.steady is None


def test_a_steady_step_hands_on_what_it_knows(monkeypatch) -> None:
    """While all decode and blocks suffice, neither planning nor committing goes the long way, at any depth."""
    run = decoding(max_num_batched_tokens=2, num_blocks=8)
    run.step(grants((0, 1), (1, 1)))

    def long_way(*_):
        raise AssertionError

    for module, name in ((plan_module, "plan_decodes"), (commit_module, "commit_decodes"), (commit_module, "_living")):
        monkeypatch.setattr(module, name, long_way)
    for depth in (1, 2, 3):
        while len(run.state.in_flight) < depth:
            run.step(grants((0, 1), (1, 1)))
        run.deliver()


def test_decodes_without_a_memo_are_committed_at_once() -> None:
    """Those from the first entry on, as far as each decoded one token."""
    run = decoding()
    run.step(grants((1, 1), (0, 1)))
    assert run.state.running.steady is None
    done = commit_module.commit_decodes(run.state, run.state.in_flight[0].entries, (3, 4), 0)
    assert (done.sequence_ids, done.token_ids) == ((1, 0), (3, 4))


def test_the_last_free_blocks_do_for_a_steady_step(monkeypatch) -> None:
    """Two sequences open a block each, and just two are free: no reason to go the long way."""
    run = work(request(0, 1), request(1, 1), block_size=1, num_blocks=8, max_model_len=7)
    while run.state.pool.num_free > 2:
        run.step(grants((0, 1), (1, 1)))
        run.deliver()
    monkeypatch.setattr(plan_module, "plan_decodes", None)
    run.step(grants((0, 1), (1, 1)))
    assert run.state.pool.num_free == 0
