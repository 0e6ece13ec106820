"""How an engine is set up on a GPU, as far as a CPU can show it: cards and models without kernels, room, graphs, threads."""

import gc
import weakref
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from attrs import evolve

from llm.recorded_graph import RecordedGraph
from nanofn import LLM
from nanofn.config import Limits
from nanofn.device import decode_graphs, fused_executor, prefill_graphs, second_use, trial
from nanofn.device.capture import Captured, capture
from nanofn.device.checkpoint import load_checkpoint
from nanofn.device.decode_graphs import bucket_sizes, make_bucket
from nanofn.device.fused_executor import FusedExecutor
from nanofn.device.kernel_support import obstacle
from nanofn.device.memory import room_on
from nanofn.device.precompile import request_kernels
from nanofn.device.prefill_graphs import SIZES, TOKEN_UNIT, PrefillGraphs, capture_shapes, capture_size, capture_sizes
from nanofn.device.second_use import SecondUse
from nanofn.device.step_memory import allocate_step_memory
from nanofn.device.trial import kept_results, working_bytes
from nanofn.errors import ConfigError
from nanofn.llm import assemble
from nanofn.llm.locate import embedded_model
from nanofn.llm.options import EngineOptions
from nanofn.model.decode import allocate_workspace
from nanofn.model.prefill import prefill_layer
from nanofn_kernels._dispatch import HAS_TRITON, compiled_in_background, wake_triton
from nanofn_kernels.work_list import MAX_ENTRIES

CPU = torch.device("cpu")
CUDA = torch.device("cuda", 0)
LIMITS = Limits(block_size=16, num_blocks=8, max_num_seqs=3, max_num_batched_tokens=100, max_model_len=64)
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")


@pytest.fixture(scope="module")
def checkpoint():
    """The embedded model."""
    return load_checkpoint(embedded_model())


@pytest.fixture
def card(monkeypatch):
    """Make torch say that it has a GPU of some capability and shared memory."""

    def pretend(capability, shared_bytes):
        properties = SimpleNamespace(shared_memory_per_block_optin=shared_bytes)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
        monkeypatch.setattr("nanofn.device.kernel_support.HAS_TRITON", True)

    return pretend


@pytest.mark.parametrize(
    ("capability", "shared_bytes", "wanted"),
    [
        ((8, 0), 166_912, "compute capability 9.0, this GPU has 8.0"),
        ((8, 9), 101_376, "compute capability 9.0, this GPU has 8.9"),
        ((12, 0), 101_376, "232,448 bytes of shared memory, this GPU has 101,376"),
        ((9, 0), 232_448, None),
        ((10, 0), 232_448, None),
    ],
)
def test_a_card_that_cannot_run_the_kernels_is_named(card, checkpoint, capability, shared_bytes, wanted):
    """A100, RTX 4090, RTX 5090, H200 and B200. The assembler refuses the kernels below 9.0; the launches need the memory."""
    card(capability, shared_bytes)
    found = obstacle(checkpoint.config, CUDA)
    assert (found is None) == (wanted is None)
    assert wanted is None or wanted in found


def test_models_and_machines_without_kernels_are_named(card, checkpoint, monkeypatch):
    """Heads of another width, too many to a K/V head, no Triton."""
    card((9, 0), 232_448)
    config = checkpoint.config
    assert "head_dim" in obstacle(evolve(config, head_dim=48), CUDA)
    assert "at most 32 times" in obstacle(evolve(config, num_heads=64, num_kv_heads=1, head_dim=64), CUDA)
    monkeypatch.setattr("nanofn.device.kernel_support.HAS_TRITON", False)
    assert "Triton" in obstacle(config, CUDA)


def test_more_sequences_than_the_kernels_take_are_an_error_that_says_how_many(checkpoint):
    """Before anything is compiled or measured."""
    options = EngineOptions(max_num_seqs=MAX_ENTRIES + 1)
    with pytest.raises(ConfigError, match=r"max_num_seqs is 4097.*4096.*lower it"):
        assemble._bounds(options, checkpoint)


def test_what_steps_keep_is_counted_for_every_size(checkpoint):
    """Logits of the buckets 1 and 2 beside 3, hidden states of 32, 64 and 96 tokens: the largest trial shows none of them."""
    params = checkpoint.params
    vocab_size, hidden_size = params.head.shape
    memory = allocate_step_memory(params, LIMITS, CPU, depth=1, num_blocks=8)
    buckets, logits, hidden = kept_results(params, memory, LIMITS, pool=object())
    assert len(buckets) == 2
    assert logits.shape == (1 + 2, vocab_size)
    assert [tuple(each.shape) for each in hidden] == [(32, hidden_size), (64, hidden_size), (96, hidden_size)]
    assert capture_shapes(evolve(LIMITS, max_num_seqs=40)) == [
        (tokens, few) for tokens in (32, 64, 96) for few in (32, 44)
    ]
    assert kept_results(params, memory, LIMITS, pool=None)[2] == []


def test_no_bucket_holds_more_entries_than_a_step_may_have():
    """A budget of 2 tokens lets 2 of 3 sequences decode."""
    assert bucket_sizes(LIMITS) == (1, 2, 3)
    assert bucket_sizes(evolve(LIMITS, max_num_batched_tokens=2)) == (1, 2)


class Recorded:
    """A graph of torch's, that records nothing and replays nothing."""

    number = 0

    def capture_begin(self, **_):
        assert not gc.isenabled()
        Recorded.number += 1

    def capture_end(self):
        """As if all was well."""

    def replay(self):
        """As if all ran again."""


@pytest.fixture
def gpu(monkeypatch):
    """Make a CPU pass for a GPU on which a graph takes 1,000 bytes that torch knows nothing of, and all tensors 7."""
    Recorded.number = 0
    stand_ins = {
        "CUDAGraph": Recorded,
        "Stream": lambda _: None,
        "current_stream": lambda *_: SimpleNamespace(synchronize=lambda: None),
        "empty_cache": lambda: None,
        "graph_pool_handle": object,
        "max_memory_reserved": lambda _: 7,
        "mem_get_info": lambda _: (10**6 - 1000 * Recorded.number, 10**6),
        "memory_reserved": lambda _: 0,
        "reset_peak_memory_stats": lambda _: None,
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)


@pytest.mark.usefixtures("gpu")
def test_a_trial_counts_what_graphs_take_beside_the_first(checkpoint):
    """Three graphs a bucket. The largest bucket is there, three sizes and three prefills are to come, none larger than three."""
    working = working_bytes(checkpoint.params, LIMITS, CPU, depth=2, layer=prefill_layer, captures=True)
    assert working == 7 + 3000 + (3 + 3) * 3000


@pytest.mark.usefixtures("gpu")
def test_a_trial_gives_back_what_it_took(checkpoint, monkeypatch):
    """Before Python collects: what it still held would count once more, as taken from what K/V may have."""
    held = []

    def allocate(*arguments, **options):
        memory = allocate_step_memory(*arguments, **options)
        held.append(weakref.ref(memory.cos_sin))
        return memory

    monkeypatch.setattr(trial, "allocate_step_memory", allocate)
    gc.disable()
    try:
        working_bytes(checkpoint.params, LIMITS, CPU, depth=2, layer=prefill_layer, captures=True)
        assert [each() for each in held] == [None]
    finally:
        gc.enable()
    taken = Recorded.number
    assert working_bytes(checkpoint.params, LIMITS, CPU, depth=2, layer=prefill_layer, captures=False) == 7
    assert Recorded.number == taken


@pytest.mark.usefixtures("gpu")
def test_every_size_is_captured_at_the_start(checkpoint):
    """A forward pass and two samplers each; and kernels are asked for before, with one layer and blocks for no sequence."""
    long = evolve(LIMITS, num_blocks=99, max_model_len=1024)
    request_kernels(checkpoint.params, long, CPU)
    assert Recorded.number == 0
    engine = FusedExecutor(checkpoint.params, long, CPU, captures=True)
    assert Recorded.number == 3 * len(bucket_sizes(long))
    engine.close()


@pytest.mark.usefixtures("gpu")
def test_a_captured_bucket_holds_the_memory_that_its_graph_writes(checkpoint, monkeypatch):
    """A graph knows its workspace by address alone: who lets go of it lets others' memory be written over."""
    workspaces = []

    def allocate(*arguments):
        found = allocate_workspace(*arguments)
        workspaces.append(weakref.ref(found.scratch))
        return found

    monkeypatch.setattr(decode_graphs, "allocate_workspace", allocate)
    memory = allocate_step_memory(checkpoint.params, LIMITS, CPU, depth=1, num_blocks=8)
    bucket = make_bucket(checkpoint.params, memory, 2, pool=object())
    gc.collect()
    assert workspaces[0]() is not None
    assert bucket.forward().shape == (2, checkpoint.config.vocab_size)
    bucket.sample(True)
    del bucket
    gc.collect()
    assert workspaces[0]() is None


def test_what_stops_a_capture_is_what_is_raised(monkeypatch):
    """Not what torch says of a graph that is void; and Python collects again."""

    class Void(Recorded):
        def capture_end(self):
            raise RuntimeError("operation failed due to a previous error during capture")

    def work():
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Void)
    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        capture(work, pool=None)
    assert gc.isenabled()


def test_no_room_while_an_engine_is_set_up_is_a_config_error():
    """Wherever in the set-up torch runs out of memory."""
    with (
        pytest.raises(ConfigError, match=r"the engine does not fit on cpu.*: lower it") as caught,
        room_on(CPU, "the engine", "lower it"),
    ):
        raise torch.OutOfMemoryError("no room")
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)


def test_weights_that_do_not_fit_are_a_config_error(monkeypatch):
    """Which names the model."""

    def no_room(*_, **__):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(assemble, "load_checkpoint", no_room)
    with pytest.raises(ConfigError, match=r"does not fit on cpu.*smaller model"):
        LLM(device="cpu")


@pytest.mark.parametrize("most", [1, 7, 16, 100, 1000, 2040, 3000, 16384])
def test_steps_are_captured_that_are_small_or_as_large_as_can_be(most):
    """Whatever the budget: a size holds the step, is aligned, within the budget and the least such one."""
    sizes = capture_sizes(most)
    assert all(size % TOKEN_UNIT == 0 and size <= most for size in sizes)
    for num_tokens in range(1, most + 1):
        size = capture_size(num_tokens, most)
        is_wanted = any(num_tokens <= each for each in sizes) and (num_tokens <= SIZES[-1] or num_tokens == most)
        assert (size is not None) == is_wanted
        assert size is None or size == min(each for each in sizes if each >= num_tokens)


def test_a_prefill_that_there_is_no_room_to_capture_stays_as_it_was(checkpoint, monkeypatch, caplog):
    """The third use fails no more than the second: both run what the first one ran, and the user is told once."""
    num_captures, steps = 0, []

    def no_room(work, pool):
        nonlocal num_captures
        num_captures += 1
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(second_use, "capture", no_room)
    monkeypatch.setattr(prefill_graphs, "prefill", lambda *arguments: steps.append(arguments[2]))
    memory = allocate_step_memory(checkpoint.params, LIMITS, CPU, depth=1, num_blocks=8)
    prefills = PrefillGraphs(checkpoint.params, memory, LIMITS, prefill_layer, SecondUse("prefill steps", object()))
    for _ in range(4):
        prefills.run(torch.zeros((3, 32), dtype=torch.int32), 20)
    assert (num_captures, steps) == (1, [32] * 4)
    assert sum("no memory to capture" in record.message for record in caplog.records) == 1


def test_steps_that_were_captured_go_with_their_owner(checkpoint, monkeypatch):
    """At once, without Python's collector: after a trial its memory would count twice, and a closed engine's stay."""
    monkeypatch.setattr(second_use, "capture", lambda work, _: Captured(RecordedGraph(), work, work()))
    memory = allocate_step_memory(checkpoint.params, LIMITS, CPU, depth=1, num_blocks=8)
    prefills = PrefillGraphs(checkpoint.params, memory, LIMITS, prefill_layer, SecondUse("prefill steps", object()))
    for _ in range(2):
        prefills.run(torch.full((3, 32), -1, dtype=torch.int32), 20)
    (key,) = prefills.graphs._captured
    held = weakref.ref(prefills.graphs._captured[key])
    gc.disable()
    try:
        del prefills
        assert held() is None
    finally:
        gc.enable()


def test_closing_an_engine_leaves_the_library_s_workspaces_to_others(checkpoint, monkeypatch):
    """Captured graphs know them by address, so the last engine gives them back."""
    cleared = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: cleared.append(1), raising=False)
    engines = [FusedExecutor(checkpoint.params, LIMITS, CPU) for _ in range(2)]
    for engine in engines:
        engine._stream = SimpleNamespace(synchronize=lambda: None)
        fused_executor._on_gpu.add(engine)
    engines[0].close()
    assert not cleared
    engines[1].close()
    assert cleared == [1]


def test_an_engine_whose_device_is_lost_can_be_closed(checkpoint, monkeypatch):
    """So that `with LLM(...)` ends with the EngineDeadError and not with what torch says of closing."""

    def lost(*_):
        raise RuntimeError("CUDA error: unspecified launch failure")

    engine = FusedExecutor(checkpoint.params, LIMITS, CPU)
    engine._stream = SimpleNamespace(synchronize=lost)
    monkeypatch.setattr(torch.cuda, "empty_cache", lost)
    engine.close()
    assert not engine.is_alive()


def test_more_steps_than_slots_are_refused(checkpoint):
    """A slot that is taken again before its step is collected would give that step another one's tokens."""
    engine = FusedExecutor(checkpoint.params, LIMITS, CPU, depth=1)
    engine._pending.extend(engine._staging.slots)
    with pytest.raises(AssertionError, match="more steps under way than slots"):
        engine.launch(None, ())


@contextmanager
def compiling():
    """What `compiled_in_background` does on a machine without a GPU."""
    with compiled_in_background(1, CUDA):
        from triton.runtime._async_compile import active_mode

        yield active_mode.get()


def fails():
    """A compilation that fails."""
    raise ValueError("does not compile")


@needs_triton
def test_triton_knows_its_own_hash_once_it_is_awake():
    """The first kernel need not wait for 460 MB to be read."""
    from triton.runtime.cache import triton_key

    wake_triton()
    assert triton_key.cache_info().currsize == 1


@needs_triton
def test_a_compilation_that_fails_is_said_and_leaves_nothing_behind():
    """The next engine of the process compiles in threads again."""
    for _ in range(2):
        with pytest.raises(ValueError, match="does not compile"), compiling() as mode:
            mode.submit("key", fails, lambda kernel: None)


@needs_triton
def test_what_stops_an_engine_s_set_up_is_not_hidden_by_what_it_compiled():
    """Ctrl-C stays Ctrl-C, and nothing is left behind."""

    def interrupted():
        with compiling() as mode:
            mode.submit("key", fails, lambda kernel: None)
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            interrupted()


def test_a_gpu_without_kernels_gets_the_plain_executor(monkeypatch, capsys):
    """And the line on stderr says why."""
    monkeypatch.setattr(assemble, "obstacle", lambda *_: "no kernels here")
    monkeypatch.setattr(assemble, "pick_device", lambda _: SimpleNamespace(type="cuda"))
    made = []
    monkeypatch.setattr(assemble, "load_checkpoint", lambda path, **_: load_checkpoint(path, dtype=torch.float32))
    monkeypatch.setattr(assemble, "pick_dtype", lambda *_: torch.float32)
    monkeypatch.setattr(assemble, "free_bytes", lambda _: 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "some card")
    monkeypatch.setattr(assemble, "FusedExecutor", None)
    eager = assemble.EagerExecutor
    monkeypatch.setattr(assemble, "EagerExecutor", lambda p, limits, _: made.append(limits) or eager(p, limits, CPU))
    LLM(max_model_len=64, max_num_seqs=2, enforce_eager=True).close()
    assert len(made) == 1
    assert "one operation after another: no kernels here" in capsys.readouterr().err
