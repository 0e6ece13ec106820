"""Sessions: `nox -l` lists them, `nox -s tests` runs the tests.

All sessions share one environment, because an environment with torch in it costs minutes and gigabytes. It lies in
`.nox/nanofn`, is made on first use from `constraints.txt`, and is renewed when that file or `pyproject.toml` changes.
`NANOFN_ENVIRONMENT=DIR` names another one (CI passes the environment that it has just tried the README in).
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import nox

nox.needs_version = ">=2025.5"
nox.options.default_venv_backend = "none"  # sessions use the shared environment, see above
nox.options.sessions = ["tests"]

ROOT = Path(__file__).resolve().parent
ENVIRONMENT = Path(os.environ.get("NANOFN_ENVIRONMENT") or ROOT / ".nox" / "nanofn")
VARIABLES = {
    "PYTHONSAFEPATH": "1",  # keeps the repository root, and with it the folder `kernels`, off the import path
    "HF_HUB_OFFLINE": "1",  # nothing here may need a download
    "TOKENIZERS_PARALLELISM": "false",  # its threads outlive a fork and warn about it
}
OLD_TRITON = "3.6.0"
"""The second compiler that kernels are compiled for a GPU with: the one that torch 2.11, our floor, brings."""


def run(session: nox.Session, program: str, *arguments: str, **variables: str) -> None:
    """Run a program of the shared environment, with `variables` added to the environment variables."""
    prepare(session)
    session.run(str(ENVIRONMENT / "bin" / program), *arguments, env=VARIABLES | variables, external=True)


def prepare(session: nox.Session) -> None:
    """Create the shared environment or bring it up to date."""
    groups = nox.project.dependency_groups(nox.project.load_toml("pyproject.toml"), "dev")
    inputs = b"".join((ROOT / name).read_bytes() for name in ("pyproject.toml", "constraints.txt"))
    wanted = hashlib.sha256(str(ROOT).encode() + inputs).hexdigest()
    stamp = ENVIRONMENT / "nanofn-environment"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return
    if not ENVIRONMENT.exists():
        session.run(sys.executable, "-m", "venv", str(ENVIRONMENT), external=True)
    # Not compiling saves half a minute: most of torch is never imported.
    pip = (str(ENVIRONMENT / "bin" / "python"), "-m", "pip", "install", "-q", "--no-compile", "-c", "constraints.txt")
    session.run(*pip, "-e", ".", *groups, external=True)
    stamp.write_text(wanted, encoding="utf-8")


def old_triton(session: nox.Session) -> str:
    """Return a folder that holds the oldest supported Triton, fetched once; importable only where it is named."""
    folder = ENVIRONMENT / f"triton-{OLD_TRITON}"
    if not folder.exists():
        target = ("--no-deps", "--no-compile", "--target", str(folder), f"triton=={OLD_TRITON}")
        run(session, "pip", "install", "-q", *target, PIP_CONSTRAINT="")
    return str(folder)


BESIDE_KERNELS = ("property_tests/ops", "property_tests/lab", "property_tests/invariants")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests, beside them those of kernels under Triton's interpreter. Arguments replace the selection."""
    if session.posargs:
        run(session, "pytest", *session.posargs)
        return
    # The interpreter is chosen when a kernel is defined, so these tests have a process of their own; it takes one core, and
    # some tests that know nothing of kernels, so that both processes end at about the same time.
    variables = {"TRITON_INTERPRET": "1", "NANOFN_OLD_TRITON": old_triton(session)}
    command = (
        str(ENVIRONMENT / "bin" / "pytest"),
        *BESIDE_KERNELS,
        "--hypothesis-profile=ci",
        "-p",
        "no:cacheprovider",
    )
    with tempfile.TemporaryFile("w+", encoding="utf-8") as said:
        kernels = subprocess.Popen(command, stdout=said, stderr=said, env=os.environ | VARIABLES | variables, cwd=ROOT)
        try:
            ignored = [f"--ignore={folder}" for folder in BESIDE_KERNELS]
            run(session, "pytest", *ignored, "--hypothesis-profile=ci")
        finally:
            status = kernels.wait()
            said.seek(0)
            sys.stdout.write(said.read())
    if status:
        session.error("the tests of kernels failed, see above")


@nox.session(default=False)
def prove(session: nox.Session) -> None:
    """Run the tests, slow ones too, with many more examples: minutes to hours."""
    selection = session.posargs or ["property_tests", "--ignore=property_tests/ops"]
    run(session, "pytest", "--hypothesis-profile=prove", "-m", "not gpu", "--timeout=0", *selection)


@nox.session(default=False)
def bugs(session: nox.Session) -> None:
    """Plant each bug of `property_tests/core/seeded_bugs.py` and print how soon it is found, as a table."""
    run(session, "python", "-m", "core.seeded_bugs", PYTHONPATH="property_tests")


@nox.session(default=False)
def diagram(session: nox.Session) -> None:
    """Draw the life of a sequence, as observed, into `docs/state_machine.md`."""
    run(session, "python", "-m", "core.phases", PYTHONPATH="property_tests")


@nox.session(default=False)
def mutate(session: nox.Session) -> None:
    """Plant every mutant of the core; fails if one survives that is not listed as equivalent. See `mutation/run.py`."""
    run(session, "python", "-m", "mutation.run", *session.posargs, PYTHONPATH="property_tests")


@nox.session(default=False)
def gpu(session: nox.Session) -> None:
    """Run the tests that need a CUDA device, with the packages that this machine has: nothing is installed."""
    session.run("bash", ".ci/gpu", *session.posargs, external=True)


@nox.session
def benchmarks(session: nox.Session) -> None:
    """Run the CPU benchmarks at smoke size; `-- full` takes the real sizes, other arguments go to pytest."""
    sizes = [argument for argument in session.posargs if argument in {"smoke", "full"}] or ["smoke"]
    rest = [argument for argument in session.posargs if argument not in {"smoke", "full"}]
    options = ("-s", "-o", "python_files=bench_*.py", "-o", "python_functions=bench_*", "-o", "pythonpath=benchmarks")
    run(session, "pytest", *options, *(rest or ["benchmarks"]), NANOFN_BENCHMARK_SIZE=sizes[-1])


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, format and import contracts."""
    run(session, "ruff", "check", ".")
    run(session, "ruff", "format", "--check", ".")
    run(session, "lint-imports", "--no-logo")


@nox.session
def types(session: nox.Session) -> None:
    """Check types."""
    run(session, "mypy")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation into `site/`; a warning is an error."""
    run(session, "sphinx-build", "-W", "--keep-going", "-q", "-b", "html", "docs", "site", *session.posargs)


@nox.session(default=False)
def build(session: nox.Session) -> None:
    """Build the wheel and the source archive into `dist/`."""
    run(session, "hatchling", "build", *session.posargs)
