"""The event log: what was written is read again, and folding it repeats the run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from nanofn import LLM, SamplingParams
from nanofn.cli import main
from nanofn.config import Limits
from nanofn.errors import LogError
from nanofn.event_log import LogWriter, read_log, replay, write_log
from nanofn.event_log.encoding import RECORDS, decode, encode
from nanofn.lab.random_work import random_work
from nanofn.policy import fcfs, prefill_first
from nanofn.request import Request, RequestId, SequenceId
from nanofn.state.decision import Decision
from nanofn.state.events import HintChanged, RequestArrived, StepDecided, StopStringMatched

RECORDED = Path(__file__).parent / "recorded.jsonl"
"""A run that was recorded once, by random work 326 under Python 3.11."""


def logged_work(path, seed):
    """Log a random run; returns what drove it."""
    work = random_work(seed)
    write_log(path, work.state.limits, work.log)
    return work


@given(seed=st.integers(0, 10_000))
def test_a_run_is_read_as_it_was_written_and_folds_to_the_same_plans(tmp_path_factory, seed):
    """Limits, events, plan hash and last state."""
    path = tmp_path_factory.mktemp("log") / "run.jsonl"
    work = logged_work(path, seed)
    log = read_log(path)
    assert (log.limits, log.events, log.is_torn) == (work.state.limits, tuple(work.log), False)
    done = replay(log)
    assert done.difference is None
    assert done.state == work.state
    assert done.num_tokens == sum(map(len, work.outputs.values()))


def test_every_field_of_every_record_survives():
    """Fields that random runs leave at their defaults, too."""
    request = Request(
        RequestId(3), (1, 2), cache_keys=(("salt", "ü\n"),), arrival_us=7, priority=-1, client="a",
        ttft_slo_us=1, tpot_slo_us=2, deadline_us=3, tags=(("x", "y"),),
    )  # fmt: skip
    limits = Limits(2, 9, 3, 4, 5, enable_prefix_caching=False, digest_key=bytes(range(64)))
    decision = Decision(((0, 1),), preempt=(1,), victims=(), shed=(2,), skip_blocked=True, wake_us=5)
    records = [
        RequestArrived(request), limits, StepDecided(decision, 9, "guard"), HintChanged(SequenceId(1), (1.5, 2)),
        HintChanged(SequenceId(1), None),
    ]  # fmt: skip
    assert [decode(json.loads(json.dumps(encode(record)))) for record in records] == records


def test_a_log_replays_in_another_process_and_another_python(tmp_path):
    """A log recorded long ago gives its plan hash here, whatever the hash seed; the version that wrote it is noted in it."""
    wanted = json.loads(RECORDED.read_text(encoding="utf-8").splitlines()[-1])
    for hash_seed in ("0", "1234"):
        environment = os.environ | {"PYTHONHASH326": hash_seed}
        command = [
            sys.executable,
            "-c",
            "from nanofn.cli import main; raise SystemExit(main())",
            "replay",
            str(RECORDED),
        ]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        assert f"plan hash {replay(read_log(RECORDED)).plan_hash}\nas recorded\n" in done.stdout
    assert wanted["is"] in RECORDS


@given(data=st.data())
def test_a_log_that_was_cut_off_replays_to_its_last_whole_line(tmp_path_factory, data):
    """As a crash or a full disk leaves it, at any byte after the header."""
    text = RECORDED.read_bytes()
    cut = data.draw(st.integers(text.index(b"\n") + 1, len(text)))
    path = tmp_path_factory.mktemp("log") / "cut.jsonl"
    path.write_bytes(text[:cut])
    log = read_log(path)
    assert log.is_torn == (text[cut - 1 : cut] != b"\n")
    assert len(log.events) == text[:cut].count(b"\n") - 1
    assert replay(log).difference is None


def changed(path, number, change):
    """Copy the recorded log with one line changed."""
    lines = RECORDED.read_text(encoding="utf-8").splitlines()
    lines[number] = change(lines[number])
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("number", "change", "message"),
    [
        (0, lambda line: "{}", "line 1: it is no event log of version 1"),
        (0, lambda line: line.replace('"nanofn_event_log":1', '"nanofn_event_log":7'), "version found: 7"),
        (0, lambda line: line.replace('"is":"Limits"', '"is":"Decision"'), "line 1"),
        (0, lambda line: line.replace('"block_size":', '"block_sizes":'), "line 1"),
        (3, lambda line: "not JSON", "line 4: it is not JSON"),
        (3, lambda line: "[1]", "line 4: it is list in JSON"),
        (3, lambda line: '{"is":"Nonsense"}', "line 4: a record is 'Nonsense'"),
        (3, lambda line: '{"is":"Decision"}', "line 4: Decision is no event"),
        (3, lambda line: '{"is":"RequestAborted","who":1}', "line 4"),
    ],
)
def test_a_line_that_is_not_as_it_was_written_is_named(tmp_path, capsys, number, change, message):
    """A typed error with file and line; the command says it and ends with 1."""
    path = changed(tmp_path / "run.jsonl", number, change)
    with pytest.raises(LogError, match=r"run\.jsonl") as caught:
        read_log(path)
    assert message in str(caught.value)
    assert main(["replay", str(path)]) == 1
    assert message in capsys.readouterr().err


def test_a_missing_log_is_an_error_that_names_it(tmp_path):
    """Not a traceback."""
    with pytest.raises(LogError, match="nowhere"):
        read_log(tmp_path / "nowhere.jsonl")


def test_a_changed_decision_is_found_at_its_own_step(tmp_path, capsys):
    """The hash tells at the first plan that differs, not at the end."""
    lines = RECORDED.read_text(encoding="utf-8").splitlines()
    grants = [number for number, line in enumerate(lines) if '"grants":[[' in line and '"plan_hash"' in line]
    number = grants[len(grants) // 2]

    def forget_grants(line):
        values = json.loads(line)
        del values["decision"]["grants"]
        return json.dumps(values)

    path = changed(tmp_path / "run.jsonl", number, forget_grants)
    difference = replay(read_log(path)).difference
    assert difference is not None
    assert number + 1 == difference.line
    assert main(["replay", str(path)]) == 1
    assert f"differs at line {number + 1}" in capsys.readouterr().out


def drained(path, policy):
    """Log a run under a policy, as the loop would."""
    from nanofn.lab.work import Work

    work = Work(Limits(2, 9, 3, 8, 16))
    for number in range(5):
        work.arrive(Request(RequestId(number), (1, 2, 1, number + 1), max_tokens=6))
    work.drain(policy, depth=2)
    write_log(path, work.state.limits, work.log)
    return path


def test_the_policy_that_decided_decides_the_same_again(tmp_path, capsys):
    """With its own state and the news it saw."""
    path = drained(tmp_path / "run.jsonl", fcfs)
    assert replay(read_log(path), fcfs).difference is None
    assert main(["replay", str(path), "--policy", "fcfs"]) == 0
    assert "as recorded" in capsys.readouterr().out


def test_another_policy_is_reported_at_its_first_other_decision(tmp_path, capsys):
    """With both decisions; a policy that raises has decided otherwise."""
    path = drained(tmp_path / "run.jsonl", fcfs)
    difference = replay(read_log(path), prefill_first).difference
    assert difference is not None
    assert isinstance(difference.logged, Decision)
    assert difference.logged != difference.found

    bad = tmp_path / "bad.py"
    bad.write_text(
        "class Bad:\n    init = None\n    def decide(self, policy_state, view):\n        return 1 / 0\n",
        encoding="utf-8",
    )
    assert main(["replay", str(path), "--policy", str(bad)]) == 1
    assert "ZeroDivisionError: division by zero" in capsys.readouterr().out


def test_a_line_is_written_before_the_next_event(tmp_path):
    """Whatever kills the process afterwards."""
    writer = LogWriter(tmp_path / "run.jsonl", Limits(2, 9, 3, 8, 16), policy="x")
    for number in range(3):
        writer.append(RequestArrived(Request(RequestId(number), (1,))), ())
        assert len(read_log(tmp_path / "run.jsonl").events) == number + 1
    assert read_log(tmp_path / "run.jsonl").facts == {"policy": "x"}
    writer.close()
    writer.close()


def test_a_run_that_stop_strings_end_replays_without_them(tmp_path):
    """Parameters and text stay with the loop: the log says which sequence ended at which of its tokens."""
    path = tmp_path / "run.jsonl"
    params = SamplingParams(n=2, seed=3, max_tokens=40, stop=["an", "e "], logprobs=1, prompt_logprobs=0, min_tokens=2)
    with LLM(max_model_len=96, num_kv_blocks=13, block_size=8, record=path) as llm:
        outputs = llm.generate(["Once upon a time", "The cat"], params.replace(repetition_penalty=1.2))
        state = llm.state
    reasons = [each.stop_reason for output in outputs for each in output.outputs]
    assert set(reasons) & {"an", "e "}
    log = read_log(path)
    assert len([event for event in log.events if isinstance(event, StopStringMatched)]) >= 1
    assert replay(log).difference is None
    assert replay(log).state == state
