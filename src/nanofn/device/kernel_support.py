"""Whether the kernels run a model on a GPU. Where they don't, plain torch does, one operation after another."""

import torch

from nanofn.model.config import ModelConfig
from nanofn_kernels._dispatch import HAS_TRITON
from nanofn_kernels.errors import ShapeError
from nanofn_kernels.paged_decode import check_heads

LEAST_CAPABILITY = (9, 0)
"""Launches that overlap (`griddepcontrol`) need it: PTX ISA 7.8, and the assembler refuses them below."""

LEAST_SHARED_BYTES = 227 * 1024
"""Shared memory of a program, which the launch tables were measured with; decode attention alone takes 134 KiB."""


def obstacle(config: ModelConfig, device: torch.device) -> str | None:
    """Say what keeps the kernels from running a model on a GPU, in words for the user; None if nothing does.

    Args:
        config: Its heads count.
        device: A CUDA device.
    """
    if not HAS_TRITON:
        return "Triton is not installed"
    capability = torch.cuda.get_device_capability(device)
    if capability < LEAST_CAPABILITY:
        return f"the kernels need compute capability 9.0, this GPU has {'.'.join(map(str, capability))}"
    properties = torch.cuda.get_device_properties(device)  # torch's stubs leave this one out
    shared: int = getattr(properties, "shared_memory_per_block_optin", LEAST_SHARED_BYTES)
    if shared < LEAST_SHARED_BYTES:
        return f"the kernels need {LEAST_SHARED_BYTES:,} bytes of shared memory, this GPU has {shared:,}"
    try:
        check_heads(config.num_heads, config.num_kv_heads, config.head_dim)
    except ShapeError as error:
        return f"no kernel for these heads: {error}"
    return None
