"""Phases of a start are calls of functions that the engine has."""

import importlib
import types

import pytest

from start_phases import PHASES, noted


@pytest.mark.parametrize("module", PHASES)
def test_every_phase_is_one_of_the_engine(module):
    """A function that was renamed is renamed in the benchmark too."""
    assert [name for name in PHASES[module] if not hasattr(importlib.import_module(module), name)] == []


def test_calls_are_noted_in_the_order_in_which_they_end(monkeypatch):
    """A function is what it was, its phase lies within its caller's, and afterwards nothing is noted."""
    engine = types.ModuleType("engine")
    engine.inner = lambda number: number + 1
    engine.outer = lambda number: engine.inner(number) * 2
    monkeypatch.setitem(importlib.sys.modules, "engine", engine)
    found = []
    with noted({"engine": ("outer", "inner")}, found):
        assert engine.outer(2) == 6
    assert engine.outer(2) == 6
    (first, *inner), (second, *outer) = found
    assert (first, second) == ("inner", "outer")
    assert 0 <= outer[0] <= inner[0] <= inner[1] <= outer[1]
    with pytest.raises(AttributeError), noted({"engine": ("other",)}, found):
        pass
