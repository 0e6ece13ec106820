"""The checks that a mutant meets, fastest first: small explorations, random works, then the tests of the core.

Everything is imported inside the functions, after a mutant is planted.
"""

import os
from pathlib import Path

from core.seeding import SOURCE

TESTS = Path(__file__).resolve().parents[1] / "core"
NOT_HERE = ("test_seeded_bugs.py", "test_random_works.py", "test_rule_machine.py")
"""Tests that plant bugs themselves, or that repeat what the other checks do at greater length."""
TWO_WAYS = "test_special_paths.py"
HAVE_TWO_WAYS = ("steady.py", "_decodes.py", "commit.py", "plan.py", "running.py", "digest.py", "chunked.py")
"""Files whose mutants meet the tests that hold the special paths equal to the general ones: the slowest ones."""
FRESH = "test_purity_of_transitions.py::test_plans_do_not_depend_on_the_hash_seed"
"""A test in a fresh interpreter, which would see the source as it is."""
NUM_WORKS, NUM_EXAMPLES = 100, 25


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
        Scope(Limits(1, 4, 2, 4, 5), (one,), max_live=2, max_states=250),
        Scope(Limits(2, 3, 2, 4, 5), (one,), max_live=2, depth=2, has_failures=True, max_states=250),
    )
    for scope in scopes:
        found = explore(scope)
        assert found.broken is None, found.broken


def random_works(file: str) -> None:
    """Drive random works to their ends, with the special paths' memo checked on the way."""
    from core.random_work import random_work

    for seed in range(NUM_WORKS):
        random_work(seed)


def unit_tests(file: str) -> None:
    """Run the tests of the core, those that name the file's module first."""
    import pytest
    from hypothesis import HealthCheck, settings

    quiet = tuple(HealthCheck)
    settings.register_profile("mutate", max_examples=NUM_EXAMPLES, deadline=None, suppress_health_check=quiet, derandomize=True)
    module = "nanofn." + file.removesuffix(".py").replace("/", ".")
    files = [path for path in sorted(TESTS.glob("test_*.py")) if path.name not in NOT_HERE]
    if not file.endswith(HAVE_TWO_WAYS):
        files.remove(TESTS / TWO_WAYS)
    files.sort(key=lambda path: f"{module} import" not in path.read_text("utf-8"))
    # Hypothesis was imported before the forks, which its plugin warns about.
    already = "ignore:Module already imported"
    options = ("-x", "-q", "-p", "no:cacheprovider", "-W", already, "--hypothesis-profile=mutate")
    code = pytest.main([*options, "--deselect", f"{TESTS}/{FRESH}", *map(str, files)])
    assert code == 0


CHECKS = (explorations, random_works, unit_tests)
os.environ.setdefault("OMP_NUM_THREADS", "1")
assert SOURCE.is_dir()
