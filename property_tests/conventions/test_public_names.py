"""The public surface is a decision: a name is added or removed here, on purpose, or not at all."""

import ast
import importlib

import pytest

from conventions.source import ENGINE, tree

PUBLIC: dict[str, set[str]] = {
    "nanofn": {
        "LLM", "CompletionOutput", "Logprob", "RequestOutput", "SamplingParams", "StructuredOutputsParams", "TextDelta",
        "__version__", "close",
        "generate",
    },
    "nanofn.policy": {
        "Decision", "Policy", "SequenceView", "View", "by_key", "fair", "fcfs", "guaranteed", "leader", "longest_prefix",
        "patience", "prefill_first", "priority", "quantum", "ranked", "shed_if", "shortest_first", "watermark",
    },
}  # fmt: skip
"""Module to its public names: what its `__all__` lists, or what it re-exports as itself (`from m import x as x`)."""


def public_names(module: str) -> set[str]:
    """The names that a package means for others."""
    imported = importlib.import_module(module)
    if hasattr(imported, "__all__"):
        return set(imported.__all__)
    body = tree(ENGINE.joinpath(*module.split(".")[1:], "__init__.py")).body
    aliases = [alias for node in body if isinstance(node, ast.ImportFrom) for alias in node.names]
    return {alias.name for alias in aliases if alias.asname == alias.name}


@pytest.mark.parametrize("module", sorted(PUBLIC))
def test_public_names_are_the_decided_ones(module: str) -> None:
    """A module's public names are exactly those listed above."""
    assert public_names(module) == PUBLIC[module]


@pytest.mark.parametrize("module", sorted(PUBLIC))
def test_every_public_name_can_be_used(module: str) -> None:
    """Each public name can be imported, and `dir` shows it."""
    imported = importlib.import_module(module)
    assert {name for name in PUBLIC[module] if not hasattr(imported, name)} == set()
    assert set(dir(imported)) >= PUBLIC[module]
