"""The checks that a mutant meets, fastest first: small explorations, random works, tests of single facts, tests of many.

Everything is imported inside the functions, after a mutant is planted.
"""

import os
from collections.abc import Callable
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
FOLDERS = ("core", "scenarios", "invariants")
MANY_FACTS = (
    "core/test_phases.py", "core/test_purity_of_transitions.py", "core/test_special_paths.py",
    "core/test_view_and_policies.py", "core/test_same_outputs.py", "core/test_rule_machine.py",
    "invariants/test_blocks_and_cache.py", "invariants/test_metamorphic.py", "invariants/test_policies.py",
    "invariants/test_results_and_ends.py", "core/test_plan.py",
)  # fmt: skip
"""Tests that take seconds. The other files take milliseconds for each test."""
FIXED_POINT = "property_tests/core/test_plan.py::test_a_decision_rewritten_to_what_it_got_is_a_fixed_point"
"""The one test of its file that takes seconds."""
NOT_HERE = ("core/test_seeded_bugs.py", "core/test_random_works.py")
"""Tests that plant bugs themselves, or repeat what `random_works` does."""
DECISIONS = "core/test_policy_decisions.py"
OF_POLICIES = ("core/test_view_and_policies.py", "invariants/test_policies.py", "core/test_rule_machine.py")
OF_INVARIANTS = ("invariants/test_what_findings_find.py", "invariants/test_each_finding.py")
FRESH = "property_tests/core/test_purity_of_transitions.py::test_plans_do_not_depend_on_the_hash_seed"
"""A test in a fresh interpreter, which would see the source as it is."""
NUM_WORKS, NUM_STATES, NUM_EXAMPLES = 60, 150, 25
PLUGINS = ("_hypothesis_pytestplugin", "pytest_timeout")
"""All that these tests need of pytest's plugins: loading every installed one costs more than most tests."""
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"


def explorations(file: str) -> None:
    """Reach every state of some small scopes."""
    from nanofn.config import Limits
    from nanofn.lab.explore import Scope, explore
    from nanofn.lab.shadow import EOS
    from nanofn.request import Request, RequestId

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
    from nanofn.lab.random_work import random_work

    for seed in range(NUM_WORKS):
        random_work(seed)


def own_facts(file: str) -> None:
    """Run what was written about the file: of a policy the tests with its name, of the invariants what they find."""
    if "invariants" in file:
        _run_tests([TESTS / name for name in OF_INVARIANTS])
    else:
        _run_tests([TESTS / DECISIONS], "-k", Path(file).stem)


def facts(file: str) -> None:
    """Run the quick tests, those that name the file's module first: then the others need not be collected."""
    module = "nanofn." + file.removesuffix(".py").replace("/", ".")
    quick = [path for path in _files() if _name(path) not in MANY_FACTS or _name(path) in FIXED_POINT]
    named = [path for path in quick if f"{module} import" in path.read_text("utf-8")]
    for files in (named, [path for path in quick if path not in named]):
        if files:
            _run_tests(files, "--deselect", FIXED_POINT)


def many_facts(file: str) -> None:
    """Run the slow tests, with few examples each; of a policy those of policies first."""
    names = sorted(MANY_FACTS, key=lambda name: file.startswith("policy") and name not in OF_POLICIES)
    _run_tests([TESTS / name for name in names])


def checks_of(file: str) -> tuple[Callable[[str], None], ...]:
    """The checks that a file's mutants meet, in order: those first that find most in the least time."""
    if file.startswith("policy"):
        return own_facts, facts, many_facts
    if "invariants" in file:
        return explorations, own_facts, random_works, facts, many_facts
    return explorations, random_works, facts, many_facts


def _name(path: Path) -> str:
    return path.relative_to(TESTS).as_posix()


def _files() -> list[Path]:
    every = [path for folder in FOLDERS for path in sorted((TESTS / folder).glob("test_*.py"))]
    return [path for path in every if _name(path) not in NOT_HERE]


def _run_tests(files: list[Path], *options: str) -> None:
    import pytest
    from hypothesis import HealthCheck, settings

    quiet = tuple(HealthCheck)
    settings.register_profile(
        "mutate", max_examples=NUM_EXAMPLES, deadline=None, suppress_health_check=quiet, derandomize=True
    )
    # Hypothesis was imported before the forks, which its plugin warns about.
    already = "ignore:Module already imported"
    options = (*options, "-x", "-q", "-p", "no:cacheprovider", "-W", already, "--hypothesis-profile=mutate")
    options += tuple(f"-p{name}" for name in PLUGINS)
    code = pytest.main([*options, "--deselect", FRESH, *map(str, files)])
    assert code in (0, pytest.ExitCode.NO_TESTS_COLLECTED)


CHECKS = (explorations, random_works, own_facts, facts, many_facts)
"""All of them, by cost."""
