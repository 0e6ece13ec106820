"""Requests that do not fit: refused at once with the numbers, or ended by length where the pool ends."""

import pytest

from core.build import grants, request, work
from nanofn.policy import fcfs, guaranteed, prefill_first
from nanofn.state.effects import Admitted, Rejected
from scenarios.row import row


@row("H3", "R1", "R2", "L1", "L22")
@pytest.mark.parametrize(
    ("block_size", "num_blocks", "prompt", "max_tokens", "most"),
    [(4, 2, 7, 10, 2), (4, 2, 8, 2, 1), (16, 4, 60, 20, 5), (4, 4, 10, 100, 7), (1, 3, 1, 9, 3)],
)
@pytest.mark.parametrize("policy", [fcfs, prefill_first, guaranteed])
def test_a_lone_sequence_ends_where_the_pool_ends(block_size, num_blocks, prompt, max_tokens, most, policy) -> None:
    """By length at the last token that needs no slot, without a preemption, without an empty step, others unharmed."""
    for depth in (1, 2):
        run = work(request(0, prompt, max_tokens), request(1, 1, 1), block_size=block_size, num_blocks=num_blocks)
        num_steps = run.drain(policy, depth=depth)
        assert run.endings == {0: ("length", most), 1: ("length", 1)}
        assert run.num_preemptions == 0
        assert num_steps <= most + 2
        run.check_outputs()


@row("H2", "R5", "L2")
def test_what_does_not_fit_is_refused_with_the_numbers_and_the_next_one_runs() -> None:
    """1,002 tokens and a pool of 49 blocks of 16: refused on arrival, so nobody waits behind it."""
    run = work(block_size=16, num_blocks=49, max_model_len=785)
    assert run.arrive(request(0, 1_002, 8)) == (Rejected(0, "prompt_too_long", 1_003, 785),)
    assert run.arrive(request(1, 10, 8)) == (Admitted(1, (0,)),)
    run.drain(fcfs)
    assert run.endings == {0: ("length", 8)}


@row("H1", "R7")
@pytest.mark.parametrize(("prompt", "is_admitted"), [(30, True), (31, True), (32, False), (33, False)])
def test_one_output_token_must_fit(prompt: int, is_admitted: bool) -> None:
    """With a length of 32, a prompt of 31 gets its one token and ends by length; one of 32 is refused."""
    run = work(max_model_len=32)
    (effect,) = run.arrive(request(0, prompt, 4))
    assert isinstance(effect, Admitted) == is_admitted
    run.drain(fcfs)
    assert run.endings == ({0: ("length", 32 - prompt)} if is_admitted else {})


@row("H8")
def test_an_id_is_one_request_at_a_time() -> None:
    """A second live one is refused and changes nothing; one after the other is two requests with outputs of their own."""
    run = work(request(5, 3, 2))
    assert run.arrive(request(5, 9, 2)) == (Rejected(5, "repeated_request_id", 1, 0),)
    run.drain(fcfs)
    run.arrive(request(5, 9, 2))
    run.drain(fcfs)
    assert sorted(run.endings) == [0, 1]
    run.check_outputs()


@row("L21")
def test_abort_works_wherever_a_request_is() -> None:
    """Waiting, half prefilled, decoding, in flight, preempted: everything is free at once, and again is no change."""
    for number_of_steps in range(6):
        for depth in (1, 2):
            run = work(request(0, 9, 4), request(1, 9, 4), num_blocks=5, max_num_batched_tokens=4, max_model_len=14)
            for _ in range(number_of_steps):
                if len(run.state.in_flight) == depth:
                    run.deliver()
                run.step(grants(0, 1))
            run.abort(0)
            run.abort(1)
            assert run.state.pool.num_free == 5
            assert run.abort(0) == ()
            while run.executor.results:
                run.deliver()
            run.check_all_returned()
