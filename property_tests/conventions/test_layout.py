"""Where things lie, and what is importable from where."""

import importlib.util
import os
import subprocess
import sys

import pytest

from conventions.source import ROOT, label, tracked_files

FOLDERS = {".ci", "benchmarks", "docs", "kernels", "property_tests", "src"}
FILES = {
    ".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "constraints.txt", "noxfile.py", "pyproject.toml",
}  # fmt: skip


def imported_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter holds after a statement."""
    program = f"{statement}\nimport sys\nprint(*sorted(sys.modules))"
    environment = os.environ | {"PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, env=environment, cwd=ROOT
    )
    return set(done.stdout.split())


def test_the_top_level_is_fixed() -> None:
    """The repository's first level holds the folders and files that the architecture names, and no others."""
    names = {label(path) for path in tracked_files()}
    assert {name.partition("/")[0] for name in names if "/" in name} == FOLDERS
    assert {name for name in names if "/" not in name} == FILES


def test_kernels_is_a_folder_and_not_a_package() -> None:
    """`kernels/` has no `__init__.py`: a package of that name exists elsewhere, and libraries look for it."""
    assert not (ROOT / "kernels" / "__init__.py").exists()
    assert not (ROOT / "conftest.py").exists()  # one at the root would put the root on the import path


def test_the_name_kernels_does_not_lead_into_the_repository() -> None:
    """Whatever `import kernels` finds in a test run, it is not our folder."""
    spec = importlib.util.find_spec("kernels")
    places = [] if spec is None else [spec.origin or "", *(spec.submodule_search_locations or ())]
    assert [place for place in places if str(ROOT) in place] == []


HEAVY = {"torch", "triton", "transformers", "tokenizers", "safetensors", "numpy", "huggingface_hub", "hypothesis"}


@pytest.mark.parametrize("module", ["nanofn", "nanofn.errors", "nanofn.state", "nanofn.schedule", "nanofn.policy"])
def test_what_a_researcher_imports_is_light(module: str) -> None:
    """`import nanofn` and the pure core load neither torch nor anything else that is large."""
    assert imported_by(f"import {module}") & HEAVY == set()


def test_kernels_do_not_load_the_engine() -> None:
    """`import nanofn_kernels` loads no module of nanofn."""
    loaded = imported_by("import nanofn_kernels")
    assert {name for name in loaded if name.partition(".")[0] == "nanofn"} == set()
