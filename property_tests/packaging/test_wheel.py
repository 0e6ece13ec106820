"""The wheel, not the checkout: what it contains, and that it works on its own."""

import os
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_MIB = 40
"""A wheel holds code and one small model; more than this is a mistake."""


def run(*command: str, **variables: str) -> str:
    """Run Python with arguments, away from the repository, and return what it printed."""
    environment = os.environ | {"PYTHONSAFEPATH": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"} | variables
    done = subprocess.run(
        [sys.executable, *command], check=False, capture_output=True, text=True, env=environment, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that the repository builds, made by the build backend that is installed here."""
    folder = tmp_path_factory.mktemp("dist")
    run("-m", "hatchling", "build", "-t", "wheel", "-d", str(folder))
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel is installed without its dependencies, which the environment has."""
    folder = tmp_path_factory.mktemp("site")
    run("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(folder), str(wheel))
    return folder


def names(wheel: Path) -> list[str]:
    """The files in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_the_wheel_holds_the_two_packages_and_nothing_else(wheel: Path) -> None:
    """Its top level is nanofn, nanofn_kernels and the metadata: no tests, no benchmarks, no `kernels`."""
    top = {name.partition("/")[0] for name in names(wheel)}
    assert {name for name in top if not name.endswith(".dist-info")} == {"nanofn", "nanofn_kernels"}
    assert wheel.name.endswith("-py3-none-any.whl")
    assert wheel.stat().st_size <= MAX_MIB << 20


def test_both_packages_are_typed(wheel: Path) -> None:
    """Type checkers read the annotations of both packages."""
    assert {"nanofn/py.typed", "nanofn_kernels/py.typed"} <= set(names(wheel))


def test_the_wheel_has_every_file_of_both_packages(wheel: Path) -> None:
    """No module and no data file of the source is left out."""
    sources = {"nanofn": ROOT / "src" / "nanofn", "nanofn_kernels": ROOT / "kernels" / "nanofn_kernels"}
    expected = {
        f"{package}/{path.relative_to(folder).as_posix()}"
        for package, folder in sources.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert expected - set(names(wheel)) == set()


def test_the_embedded_model_is_inside(wheel: Path) -> None:
    """A fresh machine can generate without a download: weights, config, tokenizer and notices lie in the wheel."""
    inside = {name.rpartition("/")[2] for name in names(wheel) if name.startswith("nanofn/embedded/")}
    assert {"config.json", "model.safetensors", "tokenizer.json", "NOTICES.txt"} <= inside


def test_the_metadata_says_what_pyproject_says(wheel: Path) -> None:
    """Licence, Python floor, command and long description arrive in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (folder,) = {name.partition("/")[0] for name in archive.namelist() if ".dist-info/" in name}
        metadata = Parser().parsestr(archive.read(f"{folder}/METADATA").decode())
        commands = archive.read(f"{folder}/entry_points.txt").decode()
        notices = ("LICENSE", "src/nanofn/embedded/model/NOTICES.txt")
        assert {f"{folder}/licenses/{name}" for name in notices} <= set(archive.namelist())
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "nanofn = nanofn.cli:main" in commands


def test_the_installed_wheel_imports(installed: Path) -> None:
    """Both packages load from the wheel, and the engine's public names are there."""
    program = (
        "import nanofn, nanofn_kernels, nanofn.policy; print(nanofn.__file__, nanofn_kernels.__file__, *nanofn.__all__)"
    )
    engine, kernels, *public = run("-c", program, PYTHONPATH=str(installed)).split()
    assert Path(engine).is_relative_to(installed)
    assert Path(kernels).is_relative_to(installed)
    assert {"LLM", "SamplingParams", "generate"} <= set(public)


def test_the_installed_command_explains_itself(installed: Path) -> None:
    """`nanofn --help` runs from the wheel."""
    program = "import sys; from nanofn.cli import main; sys.argv = ['nanofn', '--help']; main()"
    assert "usage" in run("-c", program, PYTHONPATH=str(installed)).lower()
