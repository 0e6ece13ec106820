"""What every test shares: Hypothesis profiles, quiet threads, and a reason for each skipped GPU test."""

import os

# Before anything imports torch. Tests run beside each other on few cores: one thread per process is faster than two
# that wait for each other, and a waiting thread must not spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
from hypothesis import HealthCheck, settings

SLOW_MACHINE = (HealthCheck.too_slow,)
"""A busy machine generates slowly; that says nothing about a test. Every other health check stays on."""

settings.register_profile("dev", max_examples=50, deadline=None, suppress_health_check=SLOW_MACHINE)
settings.register_profile(
    "ci", max_examples=100, deadline=None, suppress_health_check=SLOW_MACHINE, derandomize=True, print_blob=True
)
settings.register_profile(
    "prove", max_examples=5_000, deadline=None, suppress_health_check=SLOW_MACHINE, print_blob=True
)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip GPU tests where there is no GPU; torch is imported only if there are any."""
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_items:
        return
    import torch

    if not torch.cuda.is_available():
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """Where models are compared: a test that asks for it runs on each. Products in TF32 would be no fp32."""
    import torch  # tests of the core start without it

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield request.param
    torch.set_float32_matmul_precision(before)
