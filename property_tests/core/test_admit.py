"""Who may join the queue."""

import pytest

from core.build import limits, request, work
from nanofn.config import Limits
from nanofn.errors import ConfigError
from nanofn.lab.shadow import expected_output
from nanofn.policy import fcfs
from nanofn.schedule.admit import admit
from nanofn.state.effects import Admitted, Rejected
from nanofn.state.engine_state import initial_state


def test_an_admitted_request_waits_behind_all_others() -> None:
    """Each child gets the next arrival number, and nothing else changes."""
    state = initial_state(limits())
    state, effects = admit(state, request(5, 3, n=2))
    assert effects == (Admitted(5, (0, 1)),)
    after, effects = admit(state, request(4, 2))
    assert effects == (Admitted(4, (2,)),)
    assert [(key, each.request.request_id, each.child) for key, each in after.waiting] == [
        (0, 5, 0),
        (1, 5, 1),
        (2, 4, 0),
    ]
    assert after.pool == state.pool
    assert after.waiting.get(0) == state.waiting.get(0)


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (request(0, []), Rejected(0, "empty_prompt", 1, 0)),
        (request(0, 16), Rejected(0, "prompt_too_long", 17, 16)),
        (request(0, 17), Rejected(0, "prompt_too_long", 18, 16)),
        (request(0, 3, max_tokens=0), Rejected(0, "max_tokens", 1, 0)),
        (request(0, 3, max_tokens=-1), Rejected(0, "max_tokens", 1, -1)),
        (request(0, 3, n=0), Rejected(0, "n", 1, 0)),
        (request(9, 3), Rejected(9, "repeated_request_id", 1, 0)),
    ],
)
def test_what_can_never_be_served_is_refused_with_the_numbers(wrong, expected) -> None:
    """A refusal leaves the state as it was."""
    state, _ = admit(initial_state(limits(num_blocks=4, max_model_len=16)), request(9, 3))
    assert admit(state, wrong) == (state, (expected,))


def test_the_longest_prompt_gets_one_token() -> None:
    """A prompt of max_model_len - 1 tokens ends by length after its first token."""
    run = work(request(0, 15, max_tokens=9), num_blocks=4, max_model_len=16)
    run.drain(fcfs)
    assert run.endings[0] == ("length", 1)


def test_a_request_id_may_return_once_it_is_gone() -> None:
    """Only live requests block an id."""
    run = work(request(0, 3))
    run.abort(0)
    assert isinstance(run.arrive(request(0, 3))[0], Admitted)


def test_an_impossible_request_does_not_stand_in_the_way() -> None:
    """One is refused at once, the next is served."""
    run = work(num_blocks=2)
    assert isinstance(run.arrive(request(0, 9))[0], Rejected)
    run.arrive(request(1, 3, max_tokens=2))
    run.drain(fcfs)
    assert run.outputs[0] == expected_output(request(1, 3, max_tokens=2), 0, 9)[0]


@pytest.mark.parametrize("name", ["block_size", "num_blocks", "max_num_seqs", "max_num_batched_tokens"])
@pytest.mark.parametrize("value", [0, -256, 2.5, True])
def test_limits_are_positive_integers(name: str, value) -> None:
    """The message names the option and the value."""
    facts = {"block_size": 4, "num_blocks": 4, "max_num_seqs": 1, "max_num_batched_tokens": 8, "max_model_len": 4}
    with pytest.raises(ConfigError, match=f"{name} is {value}"):
        Limits(**facts | {name: value})


def test_a_pool_holds_one_sequence_of_max_model_len() -> None:
    """The last token needs no slot, so 8 slots hold a sequence of 9 tokens and not one of 10."""
    assert limits(block_size=4, num_blocks=2, max_model_len=9).max_model_len == 9
    with pytest.raises(ConfigError, match="max_model_len 10 needs 3 blocks of 4 tokens, but the pool has 2"):
        limits(block_size=4, num_blocks=2, max_model_len=10)
    with pytest.raises(ConfigError, match="max_model_len is 1"):
        limits(max_model_len=1)


@pytest.mark.parametrize("key", [b"", b"x" * 65])
def test_a_digest_key_has_a_length_that_the_hash_accepts(key: bytes) -> None:
    """1 to 64 bytes."""
    with pytest.raises(ConfigError, match="digest_key"):
        limits(digest_key=key)
