"""What nanofn depends on is a decision: a new name needs a decision record and a change here."""

import re
import tomllib
from importlib import metadata

from conventions.source import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

RUNTIME = {
    "attrs", "huggingface-hub", "immutables", "jinja2", "numpy", "rpds-py", "torch", "tqdm", "transformers", "triton",
}  # fmt: skip
EXTRAS = {"lab": {"hypothesis", "matplotlib"}, "structured": {"llguidance"}, "gguf": {"gguf"}}
JAX = {"jax", "jaxlib", "flax", "optax", "chex", "equinox"}


def normal(name: str) -> str:
    """A distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def names(requirements: list[str]) -> set[str]:
    """The distributions that requirements name."""
    return {normal(re.split(r"[^\w.-]", requirement.strip(), maxsplit=1)[0]) for requirement in requirements}


def needed_by(distribution: str) -> set[str]:
    """Everything that a distribution needs, directly or through others, without extras; itself included."""
    found, waiting = set(), [normal(distribution)]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        try:
            requirements = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # for another platform or Python
            continue
        waiting += names([requirement for requirement in requirements if "extra ==" not in requirement])
    return found


def pins() -> dict[str, str]:
    """Name to version, from constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return {normal(name): version for name, _, version in (line.partition("==") for line in lines) if version}


def test_the_dependencies_are_the_decided_ones() -> None:
    """The list in pyproject.toml is the one decided on, and so are the extras."""
    assert names(PROJECT["project"]["dependencies"]) == RUNTIME
    assert {extra: names(list_) for extra, list_ in PROJECT["project"]["optional-dependencies"].items()} == EXTRAS


def test_nothing_brings_jax() -> None:
    """No dependency of nanofn is JAX or needs it."""
    assert needed_by("nanofn") & JAX == set()


def test_everything_that_ci_installs_is_pinned() -> None:
    """Each package that nanofn and the sessions need has one version in constraints.txt."""
    groups = PROJECT["dependency-groups"]
    direct = [requirement for group in groups.values() for requirement in group if isinstance(requirement, str)]
    needed = {name for top in [*names(direct), "nanofn"] for name in needed_by(top)}
    present = {name for name in needed if is_installed(name)}
    assert sorted(present - set(pins()) - {"nanofn"}) == []


def test_pins_are_exact() -> None:
    """A pin names one public version, so any index has it."""
    assert [pin for pin in pins().items() if not re.fullmatch(r"[0-9][0-9A-Za-z.]*", pin[1])] == []


def is_installed(name: str) -> bool:
    """Whether a distribution is in this environment."""
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
