"""Failing devices: whatever breaks in a step, no text is lost, and whoever can be served is served."""

import json
import logging
import signal
import subprocess
import sys

import pytest
import torch

from nanofn import LLM, SamplingParams, StructuredOutputsParams
from nanofn.errors import EngineDeadError, LogitsError, StepError, UsageError
from nanofn.event_log import read_log, replay
from nanofn.state.invariants import violations

PROMPTS = [[11, 12, 13], [14] * 20, [15, 16], [17] * 9]
PARAMS = [SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True) for count in (9, 6, 12, 4)]
OPTIONS = {"max_model_len": 64, "max_num_seqs": 3, "block_size": 4, "num_kv_blocks": 16, "max_num_batched_tokens": 16}


class Faulty:
    """An executor around another one; `wanted(call, step_plan)` says when it raises, before or after the real work."""

    def __init__(self, real, wanted, error):
        self.real, self.wanted, self.error = real, wanted, error
        self.num_calls = self.num_sampled = 0
        self.alive = True

    def _maybe(self, step_plan=None):
        self.num_calls += 1
        if self.wanted(self.num_calls, step_plan):
            raise self.error

    def launch(self, step_plan, starts, *, awaits_masks=False):
        self._maybe(step_plan)
        self.real.launch(step_plan, starts, awaits_masks=awaits_masks)

    def sample(self, masks):
        self._maybe()
        self.num_sampled += 1
        self.real.sample(masks)

    def collect(self):
        output = self.real.collect()
        self._maybe()
        return output

    def forget(self):
        self.real.forget()

    def is_alive(self):
        return self.alive

    def close(self):
        self.real.close()


def faulty(llm, wanted, error=None):
    """Put a faulty executor into an engine."""
    executor = Faulty(llm._executor, wanted, error or torch.OutOfMemoryError("CUDA out of memory"))
    llm._executor = llm._engine._executor = llm._engine.loop._executor = executor
    return executor


def texts(outputs):
    """Token ids and why they end."""
    return [(output.outputs[0].token_ids, output.outputs[0].finish_reason) for output in outputs]


@pytest.fixture(scope="module")
def expected():
    """What an engine without failures gives."""
    with LLM(**OPTIONS) as llm:
        return texts(llm.generate(PROMPTS, PARAMS))


FORM = SamplingParams(temperature=0.0, max_tokens=6, structured_outputs=StructuredOutputsParams(regex="[a-d]{12}"))


@pytest.mark.parametrize(
    ("depth", "has_form", "is_fused"),
    [
        (1, True, False),
        (2, False, False),
        (2, True, False),
        (3, False, False),
        (3, True, False),
        pytest.param(2, True, True, marks=pytest.mark.slow),
    ],
)
def test_generate_survives_a_failure_at_any_executor_call(depth, has_form, is_fused, request):
    """Out of memory once, at each launch, sampling and collect in turn: the results are as without it."""
    params = [PARAMS[0], FORM, *PARAMS[2:]] if has_form else PARAMS
    if is_fused:
        request.getfixturevalue("fused")
    with LLM(depth=depth, **OPTIONS) as llm:
        expected = texts(llm.generate(PROMPTS, params))
        assert llm.reset_prefix_cache()
        executor = faulty(llm, lambda call, step_plan: False)
        llm.generate(PROMPTS, params)
        num_calls = executor.num_calls
        assert num_calls > 20
        assert (executor.num_sampled > 0) == has_form
        for failing in range(1, num_calls + 1):
            executor.num_calls = 0
            executor.wanted = lambda call, step_plan, failing=failing: call == failing
            assert llm.reset_prefix_cache()
            assert texts(llm.generate(PROMPTS, params)) == expected
            assert not violations(llm.state)
            assert llm.state.pool.num_free == OPTIONS["num_kv_blocks"]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_request_that_breaks_every_step_ends_with_an_error_and_the_others_finish(depth, expected, caplog):
    """Two failed steps in a row end it with the text it has; nobody waits for ever, and the log says why."""
    with LLM(depth=depth, **OPTIONS) as llm:
        poisoned = llm.state.next_sequence_id + 1

        def hits(call, step_plan):
            return step_plan is not None and poisoned in step_plan.entries.sequence_id

        faulty(llm, hits, LogitsError("NaN"))
        with caplog.at_level(logging.WARNING, "nanofn"):
            found = texts(llm.generate(PROMPTS, PARAMS))
        assert ((), "error") == found[1]
        shared_a_failed_plan = [reason for _, reason in found].count("error") - 1
        assert shared_a_failed_plan <= 1
        assert [one for one, reason in zip(found, expected, strict=True) if one[1] != "error"] == [
            other for one, other in zip(found, expected, strict=True) if one[1] != "error"
        ]
        assert "NaN" in caplog.text
        assert "given up" in caplog.text
        assert not violations(llm.state)


def test_step_raises_and_the_next_call_goes_on(expected):
    """Driven by hand, a failed step is the caller's to see; the requests it names live on."""
    with LLM(**OPTIONS) as llm:
        executor = faulty(llm, lambda call, step_plan: call == 3)
        ids = [llm.add_request(prompt, params) for prompt, params in zip(PROMPTS, PARAMS, strict=True)]
        results, failures = {}, []
        while llm.has_unfinished:
            try:
                results |= {output.request_id: output for output in llm.step()}
            except StepError as error:
                failures.append(error)
        assert len(failures) == 1
        assert set(failures[0].request_ids) <= set(ids)
        assert executor.num_calls > 3
        assert texts([results[request_id] for request_id in ids]) == expected


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_lost_device_gives_up_with_the_results_so_far(depth, expected):
    """EngineDeadError carries state and partial results, in order; the engine refuses further calls and can be closed."""
    llm = LLM(depth=depth, **OPTIONS)
    executor = faulty(llm, lambda call, step_plan: call >= 14, RuntimeError("CUDA error: an illegal memory access"))
    executor.alive = False
    with pytest.raises(EngineDeadError, match="illegal memory access") as caught:
        llm.generate(PROMPTS, PARAMS)
    outputs = caught.value.outputs
    assert [output.prompt_token_ids for output in outputs] == [tuple(prompt) for prompt in PROMPTS]
    for (token_ids, reason), (wanted, _) in zip(texts(outputs), expected, strict=True):
        assert wanted[: len(token_ids)] == token_ids
        assert reason == ("error" if len(token_ids) < len(wanted) else "length")
    assert any(token_ids for token_ids, reason in texts(outputs) if reason == "error")
    assert len(caught.value.state.by_request) > 0
    with pytest.raises(UsageError, match="device is lost"):
        llm.generate("a")
    llm.close()


def test_a_lost_device_shows_in_step_too():
    """With every result that nobody has taken."""
    with LLM(**OPTIONS) as llm:
        faulty(llm, lambda call, step_plan: call == 5).alive = False
        llm.add_request([1, 2], PARAMS[0])
        with pytest.raises(EngineDeadError) as caught:
            list(iter(llm.step, None))
        assert [reason for _, reason in texts(caught.value.outputs)] == ["error"]


def test_nan_logits_are_an_error_and_no_token():
    """Weights with NaN give no text: the request ends with reason "error"."""
    with LLM(**OPTIONS) as llm:
        llm._executor._params.final_norm.fill_(torch.nan)
        output = llm.generate([[1, 2, 3]], PARAMS[0])[0]
        assert texts([output]) == [((), "error")]


def test_a_recorded_run_replays_without_the_model(tmp_path, expected):
    """LLM(record=FILE): every event of the run, aborts and failures included."""
    path = tmp_path / "run.jsonl"
    with LLM(record=path, **OPTIONS) as llm:
        faulty(llm, lambda call, step_plan: call == 7)
        assert texts(llm.generate(PROMPTS, PARAMS)) == expected
        next(llm.stream([1, 2, 3], PARAMS[0]))
        state = llm.state
    log = read_log(path)
    assert log.facts["depth"] == 2
    assert replay(log).state == state
    assert replay(log).difference is None


def test_a_log_that_cannot_be_written_does_not_stop_the_run(tmp_path, monkeypatch, caplog):
    """As when the disk is full: said once, and the texts come."""
    with LLM(record=tmp_path / "run.jsonl", **OPTIONS) as llm:

        def is_full(event, effects):
            raise OSError("no space left on device")

        monkeypatch.setattr(llm._log, "append", is_full)
        assert len(llm.generate(PROMPTS, PARAMS)) == len(PROMPTS)
        assert caplog.text.count("the log ends here") == 1


CRASHING = """
import os, signal, sys
from nanofn import LLM, SamplingParams

class Crashing:
    def __init__(self, real): self.real, self.calls = real, 0
    def launch(self, *plan, **options):
        self.calls += 1
        if self.calls == 6:
            os.kill(os.getpid(), signal.SIGKILL)
        self.real.launch(*plan, **options)
    def __getattr__(self, name): return getattr(self.real, name)

llm = LLM(max_model_len=64, record=sys.argv[1])
llm._engine.loop._executor = Crashing(llm._executor)
llm.generate([[1, 2, 3]] * 3, SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True))
"""


def test_a_killed_process_leaves_a_log_that_replays_to_its_last_step(tmp_path):
    """SIGKILL in the sixth launch: that plan is the last line."""
    path = tmp_path / "run.jsonl"
    done = subprocess.run([sys.executable, "-c", CRASHING, str(path)], check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL
    result = replay(read_log(path))
    assert result.difference is None
    assert result.num_plans == 6
    assert json.loads(path.read_text(encoding="utf-8").splitlines()[-1])["is"] == "StepDecided"
