"""The checks that a mutant meets, fastest first: small explorations, random works, tests of single facts, tests of many.

Everything is imported inside the functions, after a mutant is planted.
"""

import os
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
FOLDERS = ("core", "scenarios", "invariants")
MANY_FACTS = ("test_special_paths.py", "test_view_and_policies.py", "test_same_outputs.py", "test_rule_machine.py")
"""Tests that take seconds each. Elsewhere a test takes milliseconds."""
NOT_HERE = ("test_seeded_bugs.py", "test_random_works.py")
"""Tests that plant bugs themselves, or repeat what `random_works` does."""
FRESH = "property_tests/core/test_purity_of_transitions.py::test_plans_do_not_depend_on_the_hash_seed"
"""A test in a fresh interpreter, which would see the source as it is."""
NUM_WORKS, NUM_STATES, NUM_EXAMPLES = 60, 150, 25
os.environ.setdefault("OMP_NUM_THREADS", "1")


def explorations(file: str) -> None:
    """Reach every state of some small scopes."""
    from nanofn.config import Limits
    from nanofn.lab.explore import Scope, explore
    from nanofn.lab.shadow import EOS
    from nanofn.request import Request, RequestId

    if file.startswith("policy"):
        return
    one = Request(RequestId(0), (1, 1), max_tokens=2, stop_token_ids=(EOS,))
    scopes = (
        Scope(Limits(1, 4, 2, 4, 5), (one,), max_live=2, max_states=NUM_STATES),
        Scope(Limits(2, 3, 2, 4, 5), (one,), max_live=2, depth=2, has_failures=True, max_states=NUM_STATES),
    )
    for scope in scopes:
        found = explore(scope)
        assert found.broken is None, found.broken


def random_works(file: str) -> None:
    """Drive random works to their ends."""
    from core.random_work import random_work

    for seed in range(NUM_WORKS):
        random_work(seed)


def facts(file: str) -> None:
    """Run the quick tests, those that name the file's module first."""
    module = "nanofn." + file.removesuffix(".py").replace("/", ".")
    files = sorted(_files(), key=lambda path: f"{module} import" not in path.read_text("utf-8"))
    _run_tests([path for path in files if path.name not in MANY_FACTS])


def many_facts(file: str) -> None:
    """Run the slow tests, with few examples each."""
    _run_tests([path for path in _files() if path.name in MANY_FACTS])


def _files() -> list[Path]:
    return [
        path for folder in FOLDERS for path in sorted((TESTS / folder).glob("test_*.py")) if path.name not in NOT_HERE
    ]


def _run_tests(files: list[Path]) -> None:
    import pytest
    from hypothesis import HealthCheck, settings

    quiet = tuple(HealthCheck)
    settings.register_profile(
        "mutate", max_examples=NUM_EXAMPLES, deadline=None, suppress_health_check=quiet, derandomize=True
    )
    # Hypothesis was imported before the forks, which its plugin warns about.
    already = "ignore:Module already imported"
    options = ("-x", "-q", "-p", "no:cacheprovider", "-W", already, "--hypothesis-profile=mutate")
    code = pytest.main([*options, "--deselect", FRESH, *map(str, files)])
    assert code == 0


CHECKS = (explorations, random_works, facts, many_facts)
