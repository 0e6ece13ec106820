"""Where an op runs: Triton on a GPU, Triton's interpreter under TRITON_INTERPRET=1, plain torch elsewhere.

A kernel module takes `jit` and `tl` from here, so it can be imported where Triton is not installed:

    from nanofn_kernels._dispatch import INTERPRETED, define_op, jit, tl

`triton.jit` decides between compiler and interpreter when it decorates, so one process has one of them.
"""

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from nanofn_kernels.errors import DtypeError, ShapeError, StrideError


class _Absent:
    """Stands in for `triton.language`: enough for decorators, annotations and module constants."""

    def __getattr__(self, name: str) -> "_Absent":
        return self

    def __call__(self, value: object = None, *_: object, **__: object) -> object:
        return value


try:
    import triton
    import triton.language as tl
except ImportError:
    triton, tl = None, _Absent()

HAS_TRITON = triton is not None
"""Triton can be imported. Without it every op runs its reference."""

INTERPRETED = HAS_TRITON and bool(triton.knobs.runtime.interpret)
"""Kernels run in Triton's interpreter: on the CPU, in float32 (its bfloat16 arithmetic is wrong)."""

NAMESPACE = "nanofn"
"""The ops are `torch.ops.nanofn.<name>`."""

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
"""Element types of activations and caches."""


_only_compiles: ContextVar[bool] = ContextVar("only_compiles", default=False)

BATCH_COUNTS = ("num_rows", "num_entries", "num_chunks", "num_tokens", "capacity")
"""Arguments of these names follow the batch: a kernel is not compiled anew where one is 1 or a multiple of 16."""


def kernel_of(jit_class: Any, function: Callable[..., Any]) -> Any:
    """Make a kernel of one of Triton's classes, whose launches `only_compiling` turns into mere compilations."""

    class Kernel(jit_class):
        def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            return super().run(*args, grid=grid, warmup=warmup or _only_compiles.get(), **kwargs)

    names = inspect.signature(function).parameters
    return Kernel(function, do_not_specialize=[name for name in BATCH_COUNTS if name in names])


def jit(function: Callable[..., Any]) -> Any:
    """Decorate a Triton kernel; leave it alone where Triton is absent."""
    if INTERPRETED:
        return triton.jit(function)
    return kernel_of(triton.JITFunction, function) if HAS_TRITON else function


def wake_triton() -> None:
    """Let Triton read and hash its own library, 460 MB, as it does once before its first kernel: in a thread that costs nobody."""
    if HAS_TRITON:
        cache = importlib.import_module("triton.runtime.cache")
        cache.triton_key()


@contextmanager
def compiled_in_background(num_threads: int, device: torch.device) -> Iterator[None]:
    """Compile and load kernels in threads: a launch of one that is not ready waits for it, and leaving waits for all.

    Whoever leaves by an error, Ctrl-C included, waits for none: what was asked for goes on, for the next one who asks, and
    only Python's own end waits for it.
    """

    class Mode(triton.AsyncCompileMode):
        def submit(self, key: Any, compile_fn: Callable[[], Any], finalize_fn: Any) -> Any:
            def load() -> Any:
                kernel = compile_fn()
                torch.cuda.set_device(device)
                _ = kernel.run  # loads the code, which takes longer than finding it in the cache on disk
                return kernel

            return super().submit(key, load, finalize_fn)

        def __exit__(self, exc_type: object, exc_value: object, traceback: object) -> None:
            # Triton's own stays in the mode when a compilation failed, and then no engine can be made any more.
            self.raw_futures = []
            super().__exit__(exc_type, exc_value, traceback)
            for kernel in self.future_kernels.values() if exc_type is None else ():
                kernel.result()

    pool = ThreadPoolExecutor(num_threads)
    try:
        with Mode(pool):
            yield
    finally:
        pool.shutdown(wait=False)


@contextmanager
def only_compiling() -> Iterator[None]:
    """Let launches of this package's kernels compile what they would launch, and launch nothing."""
    token = _only_compiles.set(True)
    try:
        yield
    finally:
        _only_compiles.reset(token)


def cdiv(dividend: int, divisor: int) -> int:
    """Divide rounding up."""
    return -(-dividend // divisor)


def next_power_of_2(value: int) -> int:
    """The least power of two that is not below value, which is at least 1."""
    return 1 << (value - 1).bit_length()


def define_op(
    name: str,
    *,
    mutates: Sequence[str],
    reference: Callable[..., Any],
    fake: Callable[..., Any],
    check: Callable[..., None],
) -> Callable[[Callable[..., Any]], Any]:
    """Make a launching function an opaque `torch.library.custom_op`.

    CUDA tensors go to the decorated function; CPU tensors go to `reference`, or to the decorated function
    under the interpreter. All of them, and `fake`, take the same arguments, and `check` sees them first:
    inside the op, where a compiled caller does not trace it.

    Args:
        name: The op's name in `NAMESPACE`.
        mutates: The arguments that are written. Declared to torch.
        reference: Plain torch, the same contract.
        fake: Shapes and types of the outputs, as new tensors.
        check: Raises an `ArgumentError`.

    Returns:
        A decorator. What it returns is called like the function and keeps its signature and docstring.
    """

    def decorate(launch: Callable[..., Any]) -> Any:
        @functools.wraps(launch)
        def on_gpu(*args: Any, **kwargs: Any) -> Any:
            check(*args, **kwargs)
            return launch(*args, **kwargs) if HAS_TRITON else reference(*args, **kwargs)

        @functools.wraps(launch)
        def on_cpu(*args: Any, **kwargs: Any) -> Any:
            check(*args, **kwargs)
            return launch(*args, **kwargs) if INTERPRETED else reference(*args, **kwargs)

        schema = torch.library.infer_schema(launch, mutates_args=tuple(mutates))
        op = torch.library.custom_op(
            f"{NAMESPACE}::{name}", on_gpu, mutates_args=tuple(mutates), device_types="cuda", schema=schema
        )
        op.register_kernel("cpu")(on_cpu)
        op.register_fake(fake)
        vars(op).update(__doc__=launch.__doc__, __name__=launch.__name__, __signature__=inspect.signature(launch))
        return op

    return decorate


def check_tensor(
    name: str,
    tensor: Tensor,
    shape: Sequence[int | None],
    dtypes: torch.dtype | Sequence[torch.dtype],
    device: torch.device,
) -> None:
    """Raise unless a tensor has this shape (None: any size), one of these dtypes, this device, and a contiguous last axis."""
    if tensor.dim() != len(shape) or any(
        want not in (None, got) for want, got in zip(shape, tensor.shape, strict=True)
    ):
        wanted = [("any" if size is None else size) for size in shape]
        raise ShapeError(name, wanted, list(tensor.shape))
    allowed = (dtypes,) if isinstance(dtypes, torch.dtype) else tuple(dtypes)
    if tensor.dtype not in allowed:
        raise DtypeError(name, " or ".join(map(str, allowed)), tensor.dtype)
    if tensor.device != device:
        raise StrideError(name, f"a tensor on {device}", f"one on {tensor.device}")
    if tensor.dim() and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise StrideError(name, "a contiguous last axis", f"strides {tensor.stride()}")
