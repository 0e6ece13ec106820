"""`nanofn policy`: what passes, what fails and why, and how it says so."""

import importlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nanofn.cli import main
from nanofn.event_log import read_log, replay
from nanofn.lab import check
from nanofn.lab.contract import random_run
from nanofn.lab.guarded import Guarded
from nanofn.lab.lint import impurities
from nanofn.lab.scopes import LIVENESS, safety_of
from nanofn.policy import fair, fcfs, patience, quantum

HEADER = "from nanofn.policy import *\n"


def policy(body, init="None"):
    """A file with one policy, given its decide function's body."""
    return f"{HEADER}class Mine:\n    init = {init}\n    def decide(self, policy_state, view):\n        {body}\n"


def checked(tmp_path, capsys, text, name="mine.py"):
    """Exit status and output of a check of a file."""
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    status = main(["policy", "check", str(tmp_path / name), "--log", str(tmp_path / "log.jsonl")])
    told = capsys.readouterr()
    return status, told.out, told.err


@pytest.fixture
def quick(monkeypatch):
    """The check with a tenth of its runs, and one scope of each kind."""
    monkeypatch.setattr(check, "NUM_RUNS", 20)
    monkeypatch.setattr(check, "LIVENESS", {"B": LIVENESS["B: blocks of 1"]})
    monkeypatch.setattr(check, "safety_of", lambda each: {"failures": safety_of(each)["failures"]})


def test_the_template_passes_the_whole_check_without_torch(tmp_path: Path) -> None:
    """`nanofn policy new` writes it, `nanofn policy check` finds nothing wrong, and neither imports torch."""
    program = (
        "import sys; from nanofn.cli import main; assert main(['policy', 'new']) == 0; "
        "assert main(['policy', 'check', 'my_policy.py']) == 0; print({'torch', 'hypothesis'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path, env=os.environ
    )
    assert "my_policy.py: all holds" in done.stdout
    assert "FAILS" not in done.stdout
    assert done.stdout.endswith("set()\n")


def test_a_new_policy_replaces_no_file(tmp_path: Path, capsys) -> None:
    """A second `new` of the same name leaves the file as it is."""
    file = tmp_path / "my_policy.py"
    file.write_text("mine = 1\n", encoding="utf-8")
    assert main(["policy", "new", str(file)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert file.read_text(encoding="utf-8") == "mine = 1\n"


def test_a_starving_policy_fails_with_a_timeline_and_a_log_that_replays(tmp_path: Path, capsys, quick) -> None:
    """The cheapest example: the newest first. Its counterexample is an event log whose every plan comes out again."""
    body = "ids = sorted([e.sequence_id for e in (*view.running, *view.waiting)], reverse=True)\n"
    body += "        return None, Decision(tuple([(i, 99) for i in ids[:1]]), preempt=tuple([i for i in view.running.sequence_ids if i != ids[0]]))"
    status, out, _ = checked(tmp_path, capsys, policy(body))
    assert status == 1
    assert "starvation: while others come and go, s0 never gets its next token" in out
    assert "--- from here on, again and again:" in out
    log = read_log(tmp_path / "log.jsonl")
    assert len(log.events) > 0
    assert replay(log).difference is None


FAULTS = {
    "decide raised IndexError": policy("return None, Decision(((view.running[0].sequence_id, 1),))"),
    "(line 5)": policy("return None, Decision(((view.running[0].sequence_id, 1),))"),
    "it must return (policy_state, Decision)": policy("return Decision()"),
    "the second must be a Decision": policy("return None, ()"),
    "the decision is not immutable": policy("return None, Decision([])"),
    "the policy state is not immutable": policy("return [], Decision()"),
    "asked twice about the same view": policy("seen.append(1); return None, Decision(((len(seen), 1),))")
    + "seen = []\n",
    "does the policy state compare by value": policy("return State(), Decision()") + "class State: pass\n",
    "changes the global seen": policy("seen.append(1); return None, Decision(((len(seen), 1),))") + "seen = []\n",
    "imports random": "import random\n" + policy("return None, Decision()"),
    "livelock: the steps repeat for ever": policy("return None, Decision()"),
}


@pytest.mark.parametrize("told", FAULTS)
def test_what_is_wrong_is_said(told: str, tmp_path: Path, capsys, quick) -> None:
    """Each fault of a policy is named in a line, and the exit status is 1."""
    status, out, _ = checked(tmp_path, capsys, FAULTS[told])
    assert status == 1
    assert told in out


def test_an_endless_loop_ends(tmp_path: Path, capsys, monkeypatch) -> None:
    """A decision that takes too long is a fault, even if the policy catches every exception."""
    monkeypatch.setattr("nanofn.lab.guarded.MAX_SECONDS", 0.2)
    body = "while True:\n            try:\n                view.now_us\n            except Exception:\n                pass"
    status, out, _ = checked(tmp_path, capsys, policy(body))
    assert status == 1
    assert "an endless loop?" in out


NO_POLICY = {
    "holds 0 policies": "x = 1\n",
    "name one": HEADER + "a = patience(fcfs, 3)\nb = leader(fcfs)\n",
    "does not run: ZeroDivisionError": "1 / 0\n",
    "does not run: SyntaxError": "def\n",
    "`init` is not immutable": policy("return [], Decision()", init="[]"),
}


@pytest.mark.parametrize("told", NO_POLICY)
def test_a_file_without_one_policy_is_an_error_that_says_why(told: str, tmp_path: Path, capsys) -> None:
    """Nothing was checked: exit status 2, and a line on stderr."""
    status, out, err = checked(tmp_path, capsys, NO_POLICY[told])
    assert (status, out) == (2, "")
    assert told in err


@pytest.mark.parametrize("name", ["no/such/file.py", "nosuch"])
def test_a_policy_that_is_not_there_is_an_error(name: str, capsys) -> None:
    """Exit status 2, and the name."""
    assert main(["policy", "check", name]) == 2
    assert name in capsys.readouterr().err


def test_another_hash_seed_must_not_matter(tmp_path: Path, capsys, quick) -> None:
    """Iterating a set of texts gives the same order twice in one process, and another one in the next."""
    body = "names = [str(e.sequence_id) for e in (*view.running, *view.waiting)]\n"
    body += "        return None, Decision(tuple([(int(n), 99) for n in dict.fromkeys({*names})]))"
    _, out, _ = checked(tmp_path, capsys, policy(body))
    assert "with another hash seed it decides differently" in out


IMPURE = {
    "imports time": "import time",
    "imports os.path": "from os.path import join",
    "bound from within a function": "x = 0\ndef f():\n    global x\n    x = 1",
    "open() reaches": "def f(): return open('x')",
    "a cache is shared state": "from functools import cache\n@cache\ndef f(): return 1",
    "assigns to .x": "def f(self): self.x = 1",
    "changes the global table": "table = {}\ndef f(k): table[k] = 1",
    "changes the global seen": "seen = []\ndef f(k): seen.append(k)",
    "changes itself by .append()": "def f(self): self.seen.append(1)",
    "iterates a set": "def f(xs): return [x for x in set(xs)]",
    "back door": "def f(x): return object.__setattr__",
}


@pytest.mark.parametrize("told", IMPURE)
def test_each_rule_of_the_lint_finds_its_smallest_breach(told: str) -> None:
    """The line is named as well."""
    assert any(told in found and found.startswith("line ") for found in impurities(IMPURE[told]))


@pytest.mark.parametrize("name", ["fcfs", "fair", "patience", "quantum", "by_key", "guaranteed", "leader", "put_first"])
def test_the_projects_own_policies_are_pure_to_the_lint(name: str) -> None:
    """What the lint calls impure is impure: it finds nothing where the stricter check of the core finds nothing."""
    file = Path(importlib.import_module(f"nanofn.policy.{name}").__file__)
    assert impurities(file.read_text(encoding="utf-8")) == ()


@pytest.mark.parametrize(
    "checked_policy", [fcfs, fair, quantum(fcfs, 2), patience(fair, 3)], ids=lambda p: type(p).__name__
)
def test_built_in_policies_keep_the_contract(checked_policy) -> None:
    """In random runs under the guard they decide lawfully, and what they get is a fixed point."""
    assert [random_run(Guarded(checked_policy), seed).counterexample for seed in range(40)] == [None] * 40


def test_the_guard_learns_what_is_read() -> None:
    """`patience` reads how long each has waited, `fcfs` does not."""
    patient, plain = Guarded(patience(fcfs, 3)), Guarded(fcfs)
    for each in (patient, plain):
        for seed in range(5):
            random_run(each, seed)
    assert "steps_since_output" in patient.names
    assert "steps_since_output" not in plain.names


@pytest.mark.parametrize(
    "arguments", [["policy", "new", "mine.py"], ["policy", "--help"], ["policy", "check", "--help"]]
)
def test_it_starts_in_a_second_and_without_torch(arguments: list[str], tmp_path: Path) -> None:
    """A policy is checked on any machine: neither torch nor hypothesis is imported."""
    program = (
        "import sys; from nanofn.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'numpy', 'transformers', 'hypothesis', 'nanofn.lab.check'} & set(sys.modules)))"
    )
    seconds = []
    for number in range(3):
        start = time.perf_counter()
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                program,
                *arguments[:2],
                *(["--help"] if "--help" in arguments else [f"{number}.py"]),
            ],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
            env=os.environ,
        )
        seconds.append(time.perf_counter() - start)
    assert done.stdout.endswith("['nanofn.lab.check']\n")
    assert min(seconds) < 1.0
