"""Life cycle: engines end when they should, threads and forks are told, Ctrl-C costs nothing."""

import gc
import os
import signal
import threading
import weakref

import pytest

from nanofn import LLM, SamplingParams
from nanofn.errors import Interrupted, UsageError

LONG = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)


def test_a_dropped_engine_is_collected():
    """No cycle and no registry keeps it: its memory goes with the last reference."""
    engine = LLM(max_model_len=64)
    engine.generate("a", SamplingParams(max_tokens=2))
    watch = weakref.ref(engine._executor)
    gc.disable()
    try:
        del engine
        assert watch() is None
    finally:
        gc.enable()


def test_two_engines_live_side_by_side():
    """Nothing is global: block sizes, pools and texts are each engine's own."""
    with LLM(max_model_len=64, block_size=4) as one, LLM(max_model_len=96, block_size=8) as two:
        deltas = one.stream("Once upon a time", LONG.replace(max_tokens=20))
        pieces = [next(deltas).text]
        other = two.generate("Once upon a time", LONG.replace(max_tokens=20))[0].text
        pieces += [delta.text for delta in deltas]
        assert other == "".join(pieces)


def test_another_thread_is_refused(llm):
    """With an error that says what to do, and no harm to the engine."""
    caught = []

    def call():
        try:
            llm.generate("a")
        except UsageError as error:
            caught.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert "another thread" in str(caught[0])


def test_a_forked_child_is_refused(llm):
    """The child gets a clear error, the parent goes on."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            llm.generate("a")
        except UsageError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert b"forked" in pipe.read()
    assert llm.generate("Once", LONG.replace(max_tokens=2))[0].finished


@pytest.fixture
def pythons_own_handler():
    """Python's handler of Ctrl-C; a process that a shell started in the background ignores it."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.mark.usefixtures("pythons_own_handler")
def test_ctrl_c_keeps_what_is_there_and_leaves_the_engine_ready(llm, monkeypatch):
    """The interrupt waits for the step's end; results so far come with it, finished ones whole."""
    collect, calls = llm._executor.collect, []

    def collect_and_interrupt():
        calls.append(None)
        if len(calls) == 10:
            signal.raise_signal(signal.SIGINT)
        return collect()

    monkeypatch.setattr(llm._executor, "collect", collect_and_interrupt)
    with pytest.raises(Interrupted) as caught:
        llm.generate(["Once upon a time", "The cat"], [LONG.replace(max_tokens=3), LONG])
    monkeypatch.undo()
    short, long = caught.value.outputs
    assert ("length", 3) == (short.outputs[0].finish_reason, len(short.outputs[0].token_ids))
    assert ("abort", 10) == (long.outputs[0].finish_reason, len(long.outputs[0].token_ids))
    assert isinstance(caught.value, KeyboardInterrupt)
    whole = llm.generate("The cat", LONG)[0].outputs[0].token_ids
    assert whole[:10] == long.outputs[0].token_ids


def test_a_programs_own_handler_is_left_alone(llm, monkeypatch):
    """Who handles SIGINT himself gets it at once."""
    seen = []
    previous = signal.signal(signal.SIGINT, lambda *_: seen.append(None))
    try:
        collect = llm._executor.collect
        monkeypatch.setattr(llm._executor, "collect", lambda: (signal.raise_signal(signal.SIGINT), collect())[1])
        llm.generate("Once", LONG.replace(max_tokens=2))
    finally:
        signal.signal(signal.SIGINT, previous)
    assert len(seen) >= 2


def test_a_step_that_fails_twice_ends_its_requests_with_the_text_they_have(llm, monkeypatch):
    """generate() retries by itself; what fails again ends with "error", and the engine goes on."""
    launch, calls = llm._executor.launch, []

    def fail_from_the_fifth(*arguments, **options):
        calls.append(None)
        if len(calls) >= 5:
            raise MemoryError("no room")
        launch(*arguments, **options)

    monkeypatch.setattr(llm._executor, "launch", fail_from_the_fifth)
    output = llm.generate("Once upon a time", LONG)[0]
    monkeypatch.undo()
    assert "error" == output.outputs[0].finish_reason
    assert len(output.outputs[0].token_ids) >= 3
    assert llm.generate("Once upon a time", LONG)[0].outputs[0].token_ids[:3] == output.outputs[0].token_ids[:3]


def test_a_step_that_fails_once_costs_nothing(llm, monkeypatch):
    """The text is that of an undisturbed run."""
    expected = llm.generate("Once upon a time", LONG)[0].outputs[0].token_ids
    launch, calls = llm._executor.launch, []

    def fail_once(*arguments, **options):
        calls.append(None)
        if len(calls) == 7:
            raise MemoryError("no room")
        launch(*arguments, **options)

    monkeypatch.setattr(llm._executor, "launch", fail_once)
    assert expected == llm.generate("Once upon a time", LONG)[0].outputs[0].token_ids
