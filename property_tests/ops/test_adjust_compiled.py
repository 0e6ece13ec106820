"""Kernels of adjusted logits and log-probabilities as an H200 would run them: no spills, 16-byte loads of what fills the bus.

Run as a program, in a process without TRITON_INTERPRET, it compiles every case and prints one JSON line each.
"""

import json
from collections.abc import Iterator

import pytest
import torch

from ops.test_linear_compiled import old_triton, reports

REGISTERS = {
    "find bfloat16": 32,
    "adjust bfloat16": 96,
    "find bfloat16 masked": 40,
    "adjust bfloat16 masked": 96,
    "find float32": 32,
    "adjust float32": 96,
    "find float32 masked": 40,
    "adjust float32 masked": 96,
    "chunk_sums bfloat16": 32,
    "chunk_sums float32": 40,
}
"""Of a thread, what Triton 3.6.0 and 3.7.1 made of them, the larger of the two."""


def cases() -> Iterator[tuple[str, object]]:
    """A name and a compiled kernel each."""
    from nanofn_kernels.adjust import adjust_logits
    from nanofn_kernels.chunk_sums import chunk_sums
    from ops import offline

    # The launching functions themselves: on a CPU the ops would run their references.
    launch, launch_sums = adjust_logits._init_fn.__wrapped__, chunk_sums._init_fn.__wrapped__
    vocab_size, integers = 151_936, torch.zeros(4, dtype=torch.int32)
    tables = [
        torch.zeros((5, 3), dtype=torch.int32),
        torch.zeros(5, 3),
        *(torch.zeros((5, vocab_size), dtype=dtype) for dtype in (torch.uint8, torch.int32, torch.float32)),
    ]
    masks = torch.zeros((2, 4749), dtype=torch.int32)
    for dtype in (torch.bfloat16, torch.float32):
        logits = torch.zeros((4, vocab_size), dtype=dtype)
        with offline.recording() as found:
            launch_sums(logits, torch.zeros(4, dtype=torch.int64))
        yield f"chunk_sums {str(dtype).removeprefix('torch.')}", found[0]
        for given in ((), (masks, integers)):
            with offline.recording() as found:
                launch(logits, integers, integers, *tables, *given)
            for compiled in found:
                name = compiled.metadata.name.strip("_").removesuffix("_kernel")
                yield f"{name} {str(dtype).removeprefix('torch.')}{' masked' if given else ''}", compiled


@pytest.mark.parametrize("variable", [None, "NANOFN_OLD_TRITON"], ids=["installed", "old"])
def test_compiled_kernels_are_as_good_as_recorded(variable: str | None) -> None:
    """With the installed Triton and with the oldest supported one, for sm_90."""
    found = reports("ops.test_adjust_compiled", old_triton(variable))
    assert set(found) == set(REGISTERS)
    for case, registers in REGISTERS.items():
        assert found[case]["spill_bytes"] == 0, case
        assert found[case]["registers"] <= registers, (case, found[case]["registers"])
        # A thread's 16 ids: bf16 or fp32 logits, and for the second kernel counts and bias as well.
        assert found[case]["vector_loads"] >= (8 if "adjust" in case else 2), (case, found[case]["vector_loads"])


def main() -> None:
    """Compile every case and print its figures."""
    from ops import offline

    for name, compiled in cases():
        figures = vars(offline.report(compiled))
        del figures["sass"]
        print(json.dumps({"case": name, **figures}), flush=True)


if __name__ == "__main__":
    main()
