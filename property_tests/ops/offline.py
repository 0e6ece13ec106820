"""Compile kernels to sm_90 machine code without a GPU, through their own launch functions.

Inside `recording()` a launch compiles instead of running, with the specialisation that these very arguments
would get on the GPU. Run in a process without TRITON_INTERPRET: `triton.jit` decides when it decorates.
"""

import contextlib
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

SHARED_LIMIT_BYTES = 232_448
"""Shared memory that one program may have on an H100 or H200."""


class _NoGpu:
    """Enough of a driver for `JITFunction.run(warmup=True)`."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@dataclass(frozen=True)
class Report:
    """What the assembler made of one kernel.

    Attributes:
        name: The kernel's name.
        registers: A thread.
        spill_bytes: Local memory of a thread; any is a spill or an array that left registers.
        shared_bytes: Shared memory of a program.
        async_copies: 16-byte global-to-shared copies in the code.
        vector_loads: 16-byte loads into registers.
        narrow_copies: Global-to-shared copies of less than 16 bytes.
        wgmma: Hopper's matrix instructions; mma: the older ones.
        instructions: Lines of machine code.
    """

    name: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    async_copies: int
    vector_loads: int
    narrow_copies: int
    wgmma: int
    mma: int
    instructions: int
    sass: str


def _tool(name: str) -> str:
    return str(Path(triton.__file__).parent / "backends/nvidia/bin" / name)


def report(compiled: Any) -> Report:
    """Disassemble one compiled kernel."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = subprocess.run(
            [_tool("cuobjdump"), "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
        sass = subprocess.run([_tool("nvdisasm"), "-c", file.name], capture_output=True, text=True, check=True).stdout
    found = {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    copies = re.findall(r"LDGSTS[.\w]*", sass)
    return Report(
        name=compiled.metadata.name,
        registers=found["REG"],
        spill_bytes=found["STACK"] + found["LOCAL"],
        shared_bytes=compiled.metadata.shared,
        async_copies=sum(".128" in copy for copy in copies),
        vector_loads=len(re.findall(r"LDG\.[.\w]*128", sass)),
        narrow_copies=sum(".128" not in copy for copy in copies),
        wgmma=len(re.findall(r"HGMMA", sass)),
        mma=len(re.findall(r"HMMA", sass)),
        instructions=len(re.findall(r"/\*[0-9a-f]{4,}\*/", sass)),
        sass=sass,
    )


@contextlib.contextmanager
def _without_gpu(name: str, stand_in: Callable[..., Any]) -> Iterator[None]:
    """Let something stand in for a method of Triton's compiled functions, and nothing for its GPU."""
    original = getattr(JITFunction, name)
    setattr(JITFunction, name, stand_in)
    triton.runtime.driver.set_active(_NoGpu())
    try:
        yield
    finally:
        setattr(JITFunction, name, original)


@contextlib.contextmanager
def recording() -> Iterator[list[Any]]:
    """Compile instead of launching, and collect the compiled kernels."""
    found: list[Any] = []
    run = JITFunction.run

    def compile_only(self: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        found.append(run(self, *args, grid=grid, warmup=True, **kwargs))

    with _without_gpu("run", compile_only):
        yield found


@contextlib.contextmanager
def requesting() -> Iterator[set[tuple[str, str]]]:
    """Note which kernels launches ask for, by name and specialisation, and compile none."""
    found: set[tuple[str, str]] = set()

    def note(self: JITFunction, key: str, *_: Any) -> None:
        found.add((self.fn.__name__, key))

    with _without_gpu("_do_compile", note):
        yield found
