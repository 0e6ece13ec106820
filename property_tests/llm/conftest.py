"""One small engine for all tests of the interface: loading one costs more than most tests."""

import pytest

from nanofn import LLM


@pytest.fixture(scope="session")
def llm():
    """The embedded model with room for a few sequences of 128 tokens; tests leave it idle."""
    with LLM(max_model_len=128, max_num_seqs=8, seed=0) as made:
        yield made


@pytest.fixture
def fused(monkeypatch):
    """Engines made in this test run the GPU's executor, with the references of its kernels."""
    from nanofn.device.fused_executor import FusedExecutor  # torch, which tests of other folders start without

    monkeypatch.setattr("nanofn.llm.assemble.EagerExecutor", FusedExecutor)


@pytest.fixture(autouse=True)
def idle_afterwards(request):
    """Whatever a test does with the shared engine, nothing of it stays."""
    yield
    if "llm" in request.fixturenames:
        state = request.getfixturevalue("llm").state
        assert not len(state.running)
        assert not len(state.waiting)
        assert len(state.rows) == state.limits.max_num_seqs
        assert state.pool.num_free == state.limits.num_blocks
