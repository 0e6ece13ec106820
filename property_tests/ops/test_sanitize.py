"""What runs under compute-sanitizer runs here too, and would notice a wrong result."""

from contextlib import nullcontext

import pytest
import torch

import sanitize

LONG = ("sample", "linear")
"""Half a minute and a quarter in the interpreter; what they launch has tests of its own at every commit."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in sanitize.KERNELS]
)
def test_a_kernel_is_right_on_what_the_sanitizer_sees(name, capsys) -> None:
    """Every case of a kernel equals its reference, and its name is said, from which it is known how far a run came."""
    sanitize.main([name])
    assert capsys.readouterr().out == f"{name}: right\n"


def test_a_name_that_is_none_is_an_error() -> None:
    """A misspelt kernel is not one that passed."""
    with pytest.raises(SystemExit):
        sanitize.main(["paged_decode", "sampel"])


@pytest.mark.parametrize("wrong", [None, "sample"])
def test_apart_is_a_process_of_one_thread_for_each_kernel(wrong, monkeypatch) -> None:
    """All of them start before any is waited for, and one that fails is a failure."""
    started = []

    class Process:
        def __init__(self, command, env) -> None:
            started.append((command[-1], env["OMP_NUM_THREADS"]))
            self.name = command[-1]

        def wait(self) -> int:
            assert len(started) == 2
            return int(self.name == wrong)

    monkeypatch.setattr(sanitize.subprocess, "Popen", Process)
    with pytest.raises(SystemExit) if wrong else nullcontext():
        sanitize.main(["--apart", "sample", "linear"])
    assert started == [("sample", "1"), ("linear", "1")]


@pytest.mark.parametrize("name", ["chunk_sums", "adjust_logits"])
def test_a_wrong_result_is_no_success(name, monkeypatch) -> None:
    """One number off is seen, be it in bits or in a tolerance."""
    right = getattr(sanitize, name)

    def wrong(*arguments):
        found = right(*arguments)
        changed = found if isinstance(found, torch.Tensor) else found[2]
        changed[-1, -1] += 1
        return found

    monkeypatch.setattr(sanitize, name, wrong)
    with pytest.raises(AssertionError):
        sanitize.main([name.removesuffix("_logits")])


def test_every_tabled_launch_and_every_number_of_rows_is_there() -> None:
    """Held launches of all tables, gated and not, split and not; one row, few, more than one program's."""
    found = sanitize.products()
    assert {*sanitize.FEW.values(), *sanitize.MEDIUM.values(), *sanitize.MANY.values()} <= {
        launch for *_, launch in found
    }
    assert {1, 5, 70, 200} == {num_rows for num_rows, *_ in found}
