"""The loop: whatever the policy and the executor do, requests end with the text they should have."""

import pytest

from llm.fake import FREE_FORM, Engine
from nanofn.config import Limits
from nanofn.errors import StepError
from nanofn.lab.shadow import EOS, expected_output
from nanofn.state.decision import Decision
from nanofn.state.invariants import violations

LIMITS = Limits(block_size=4, num_blocks=7, max_num_seqs=3, max_num_batched_tokens=9, max_model_len=24)
WORK = {0: ((1, 2, 3), 9), 1: ((1,) * 10, 8), 2: ((2, 1), 5), 3: ((1,) * 9, 12)}


GRAMMARS = [(), (1,), (0, 1, 2, 3)]
"""Which requests follow a grammar."""


def fill(engine, structured=()):
    """Queue the standard four requests, which do not fit together."""
    return [
        engine.add(
            number,
            prompt,
            max_tokens=max_tokens,
            stop_token_ids=(EOS,),
            grammar=FREE_FORM if number in structured else None,
        )
        for number, (prompt, max_tokens) in WORK.items()
    ]


def assert_right(engine, requests):
    """Every request ended with exactly the tokens of a solo run, and nothing is left behind."""
    for request in requests:
        output = engine.tracker.finished[request.request_id].outputs[0]
        expected = expected_output(request, 0, LIMITS.max_model_len)
        assert expected == (list(output.token_ids), output.finish_reason)
    assert engine.loop.state.pool.num_free == LIMITS.num_blocks
    assert not violations(engine.loop.state)


def run(engine, max_steps=2_000):
    """Step until all is done; failed steps are tried again."""
    num_failures = 0
    for _ in range(max_steps):
        if not engine.loop.has_unfinished:
            return num_failures
        try:
            engine.loop.step()
        except StepError:
            num_failures += 1
    raise AssertionError("the work does not end")


@pytest.mark.parametrize("depth", [2, 3])
def test_the_device_gets_its_masks_before_any_result_is_made(depth):
    """When tokens are ordered, those that just ended are out of the state and have no result; after the step all have theirs."""
    engine = Engine(LIMITS, depth=depth)
    fill(engine, structured=(0, 1, 2, 3))
    sample, num_waiting = engine.executor.sample, []

    def ended_without_result():
        ended = {number for number in WORK if number not in engine.loop.state.by_request}
        return ended - engine.tracker.finished.keys()

    def watched(masks):
        num_waiting.append(len(ended_without_result()))
        sample(masks)

    engine.executor.sample = watched
    while engine.loop.has_unfinished:
        engine.loop.step()
        assert not ended_without_result()
    assert sum(num_waiting) > 0


@pytest.mark.parametrize("structured", GRAMMARS)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_every_depth_gives_the_text_of_a_solo_run(depth, structured):
    """Steps in flight change nothing about what comes out, and each mask is for all tokens so far."""
    engine = Engine(LIMITS, depth=depth)
    requests = fill(engine, structured)
    run(engine)
    assert_right(engine, requests)
    num_tokens = [len(engine.tracker.finished[number].outputs[0].token_ids) for number in structured]
    assert engine.executor.num_masks >= sum(num_tokens)


@pytest.mark.parametrize("structured", GRAMMARS)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_failure_at_any_executor_call_loses_no_request_and_no_text(depth, structured):
    """For every launch, sampling and collect of the run: it raises once, the step names live requests, all end right."""
    reference = Engine(LIMITS, depth=depth)
    fill(reference, structured)
    run(reference)
    assert reference.executor.num_calls > 20
    for call in range(1, reference.executor.num_calls + 1):
        engine = Engine(LIMITS, depth=depth, fails_at={call})
        requests = fill(engine, structured)
        assert run(engine) == 1
        assert_right(engine, requests)


def test_a_failed_step_names_its_live_requests():
    """The error carries the requests whose work was dropped; they are still live."""
    engine = Engine(LIMITS, fails_at={1})
    fill(engine)
    with pytest.raises(StepError, match="call 1") as caught:
        engine.loop.step()
    assert caught.value.request_ids == (0, 1)
    assert engine.loop.state.by_request.get(0) is not None


@pytest.mark.parametrize("structured", GRAMMARS)
@pytest.mark.parametrize("call", range(1, 12))
def test_an_interrupt_inside_the_executor_leaves_the_engine_usable(call, structured):
    """Ctrl-C passes through as it is; stepping again goes on as after a failure."""
    engine = Engine(LIMITS, depth=2, fails_at={call}, error=KeyboardInterrupt)
    requests = fill(engine, structured)
    with pytest.raises(KeyboardInterrupt):
        run(engine)
    run(engine)
    assert_right(engine, requests)


class Scripted:
    """A policy made of one function of the view."""

    init = None

    def __init__(self, choose):
        self.choose = choose

    def decide(self, policy_state, view):
        return policy_state, self.choose(view)


def raises(view):
    """Fail at every decision."""
    raise ZeroDivisionError


def preempts_everybody(view):
    """Undo the last step and start somebody: nobody ever gets a token."""
    return Decision(tuple((each, 1) for each in view.waiting.sequence_ids), preempt=view.running.sequence_ids)


POLICIES = {
    "raises": raises,
    "returns None": lambda view: None,
    "grants nonsense": lambda view: Decision((("a", "b"),)),
    "is not hashable": lambda view: Decision([[0, 1]]),
    "grants nothing": lambda view: Decision(),
    "idles in the past": lambda view: Decision(wake_us=view.now_us - 1),
    "never lets anybody finish": preempts_everybody,
}


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("depth", [1, 2])
def test_no_policy_can_stop_the_engine(name, depth, caplog):
    """The guard decides where the policy fails or makes no progress; the text is right all the same."""
    engine = Engine(LIMITS, policy=Scripted(POLICIES[name]), depth=depth)
    requests = fill(engine)
    run(engine, max_steps=60_000)
    assert_right(engine, requests)


def test_a_policy_may_idle_until_a_time_it_names():
    """With `wake_us` in the future nothing is planned before, and no guard steps in."""
    seen = []

    def choose(view):
        seen.append(view.now_us)
        if view.now_us < seen[0] + 20_000:
            return Decision(wake_us=seen[0] + 20_000)
        return Decision(tuple((each, 9) for each in (*view.running.sequence_ids, *view.waiting.sequence_ids)))

    engine = Engine(LIMITS, policy=Scripted(choose))
    request = engine.add(0, (1, 2), max_tokens=1)
    run(engine)
    assert_right(engine, [request])
    assert engine.loop.state.num_steps <= 5
