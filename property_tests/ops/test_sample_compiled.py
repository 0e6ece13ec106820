"""The sampler as an H200 would run it: no spills, wide loads, and nothing requested before the wait.

Run as a program, in a process without TRITON_INTERPRET, it compiles every case and prints one JSON line each.
"""

import json
from collections.abc import Iterator

import pytest
import torch

from ops.test_linear_compiled import Recorded, figures_of, old_triton, reports

RECORDED = {
    "pick bfloat16": Recorded(128, 1, 0),
    "merge bfloat16": Recorded(48, 1, 0),
    "mass bfloat16 filtered": Recorded(48, 1, 0),
    "bound bfloat16 filtered": Recorded(104, 1, 0),
    "gather bfloat16 filtered": Recorded(72, 1, 0),
    "window bfloat16 filtered": Recorded(128, 1, 0),
    "settle bfloat16 filtered": Recorded(64, 1, 0),
    "decide 1 bfloat16 filtered": Recorded(112, 1, 0),
    "decide 2 bfloat16 filtered": Recorded(116, 1, 0),
    "filter bfloat16 filtered": Recorded(128, 48, 0),
    "pick bfloat16 filtered": Recorded(128, 1, 0),
    "merge bfloat16 filtered": Recorded(48, 1, 0),
    "pick float32": Recorded(128, 1, 0),
    "merge float32": Recorded(48, 1, 0),
    "mass float32 filtered": Recorded(56, 1, 0),
    "bound float32 filtered": Recorded(104, 1, 0),
    "gather float32 filtered": Recorded(72, 1, 0),
    "window float32 filtered": Recorded(128, 1, 0),
    "settle float32 filtered": Recorded(64, 1, 0),
    "decide 1 float32 filtered": Recorded(112, 1, 0),
    "decide 2 float32 filtered": Recorded(116, 1, 0),
    "filter float32 filtered": Recorded(128, 24, 0),
    "pick float32 filtered": Recorded(128, 1, 0),
    "merge float32 filtered": Recorded(48, 1, 0),
}
"""What Triton 3.6.0 and 3.7.1 made of them, the larger of the two; with some filters only, a kernel may have what it has with all."""

FILTERS = ("top_k top_p min_p", "top_k", "top_p", "top_k top_p")
DEPEND_ON_FILTERS = ("bound", "window", "decide", "filter")


def cases() -> Iterator[tuple[str, object]]:
    """A name and a compiled kernel each."""
    from nanofn_kernels.sample import sample_into
    from ops import offline

    launch = sample_into._init_fn.__wrapped__  # the launching function itself: on a CPU the op would run its reference
    ids, flags = torch.zeros(4, dtype=torch.int32), torch.ones(4, dtype=torch.bool)
    ones, integers = torch.ones(4), torch.ones(4, dtype=torch.int64)
    for dtype in (torch.bfloat16, torch.float32):
        logits = torch.zeros((4, 151_936), dtype=dtype)
        every = {"top_k": integers, "top_p": ones, "min_p": ones}
        for filters in ("", *FILTERS) if dtype == torch.bfloat16 else ("", FILTERS[0]):
            options = {name: every[name] for name in filters.split()}
            with offline.recording() as found:
                launch(ids, flags, logits, ones, integers, integers, integers, flags, **options)
            seen: dict[str, int] = {}
            for compiled in found:
                name = compiled.metadata.name.strip("_").removesuffix("_kernel")
                seen[name] = seen.get(name, 0) + 1
                number = f" {seen[name]}" if name == "decide" else ""
                if filters in ("", FILTERS[0]) or name in DEPEND_ON_FILTERS:
                    with_what = {"": "", FILTERS[0]: " filtered"}.get(filters, f" filtered: {filters}")
                    yield f"{name}{number} {str(dtype).removeprefix('torch.')}{with_what}", compiled


@pytest.mark.parametrize("variable", [None, "NANOFN_OLD_TRITON"], ids=["installed", "old"])
def test_compiled_samplers_are_as_good_as_recorded(variable: str | None) -> None:
    """With the installed Triton and with the oldest supported one, for sm_90; and nothing at all before the wait."""
    found = reports("ops.test_sample_compiled", old_triton(variable))
    assert {case.split(":")[0] for case in found} == set(RECORDED)
    # The window is of those with top-p only.
    assert len(found) == len(RECORDED) + 4 * (len(FILTERS) - 1) + sum("top_p" in filters for filters in FILTERS[1:])
    for case, figures in found.items():
        limit = RECORDED[case.split(":")[0]]
        assert figures["spill_bytes"] == 0, case
        assert figures["narrow_copies"] == 0, case
        assert figures["registers"] <= limit.registers, (case, figures["registers"])
        assert figures["shared_bytes"] <= limit.shared_kib * 1024, (case, figures["shared_bytes"])
        assert figures["early_loads"] == 0, case
        assert figures["stores_before_wait"] == 0, case
        assert figures["waits"] == 1, case


def main() -> None:
    """Compile every case and print its figures."""
    for name, compiled in cases():
        print(json.dumps({"case": name, **figures_of(compiled)}), flush=True)


if __name__ == "__main__":
    main()
