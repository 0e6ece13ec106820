"""The public surface is a decision: a name is added or removed here, on purpose, or not at all."""

import importlib

import pytest

PUBLIC: dict[str, set[str]] = {}
"""Module to the names in its `__all__`."""


@pytest.mark.parametrize("module", sorted(PUBLIC))
def test_public_names_are_the_decided_ones(module: str) -> None:
    """A module's public names are exactly those listed above."""
    assert set(importlib.import_module(module).__all__) == PUBLIC[module]


@pytest.mark.parametrize("module", sorted(PUBLIC))
def test_every_public_name_exists(module: str) -> None:
    """Each public name can be imported and is listed by `dir`."""
    imported = importlib.import_module(module)
    assert {name for name in PUBLIC[module] if not hasattr(imported, name)} == set()
    assert set(dir(imported)) >= PUBLIC[module]
