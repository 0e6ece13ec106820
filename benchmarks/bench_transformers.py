"""generate() against transformers' batched generate on a CPU: same model, same threads, same greedy tokens wanted.

Mixed lengths are the standard work's (prompts and outputs uniform between 100 and 1,024 tokens) at a quarter of the
size. transformers pads a batch to its longest prompt and runs it to its longest output; nanofn does neither. Both
figures count wanted tokens only. With equal lengths nothing is padded, so that row compares the bare engines.
"""

import os
import statistics
import time
from random import Random

import pytest
import torch
from transformers import AutoModelForCausalLM

from nanofn import LLM, SamplingParams
from nanofn.llm.locate import embedded_model
from record import append_record

IS_FULL = os.environ.get("NANOFN_BENCHMARK_SIZE") == "full"
NUM_REPEATS = 3 if IS_FULL else 1
LENGTHS = (25, 256) if IS_FULL else (2, 12)


def make_work(num_requests: int, lengths: str, shift: int) -> list[tuple[list[int], int]]:
    """Draw (prompt, number of output tokens) pairs; `shift` moves the ids, so that no repeat finds a cached prefix."""
    random = Random(num_requests)
    work = []
    for _ in range(num_requests):
        num_prompt, num_output = random.randint(*LENGTHS), random.randint(*LENGTHS)
        if lengths == "equal":
            num_prompt = num_output = sum(LENGTHS) // 2
        work.append(([(random.randrange(900) + shift) % 900 + 50 for _ in range(num_prompt)], num_output))
    return work


def run_transformers(model, work) -> float:
    """Return the seconds that transformers takes for a batch, padded on the left as its documentation asks."""
    longest = max(len(prompt) for prompt, _ in work)
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt, _ in work])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt, _ in work])
    num_new = max(num_output for _, num_output in work)
    start = time.perf_counter()
    with torch.inference_mode():
        out = model.generate(
            ids, attention_mask=mask, max_new_tokens=num_new, do_sample=False, eos_token_id=None, pad_token_id=0
        )
    assert out.shape[1] == longest + num_new
    return time.perf_counter() - start


def run_nanofn(llm: LLM, work) -> float:
    """Return the seconds that nanofn takes for the same."""
    params = [SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True) for _, count in work]
    start = time.perf_counter()
    outputs = llm.generate([prompt for prompt, _ in work], params, use_tqdm=False)
    seconds = time.perf_counter() - start
    assert [len(output.outputs[0].token_ids) for output in outputs] == [count for _, count in work]
    return seconds


@pytest.mark.parametrize("lengths", ["mixed", "equal"])
@pytest.mark.parametrize("num_requests", [16, 64])
def bench_against_transformers(benchmark, num_requests, lengths):
    """Tokens per second of both, repeats taken turn about; the ratio is the claim."""
    model = AutoModelForCausalLM.from_pretrained(embedded_model(), dtype=torch.float32).eval()
    theirs, ours = [], []
    with LLM() as llm:
        run_nanofn(llm, make_work(2, lengths, 1))
        run_transformers(model, make_work(2, lengths, 1))

        def take_turns():
            for repeat in range(NUM_REPEATS):
                work = make_work(num_requests, lengths, 7 * repeat + 3)
                theirs.append(run_transformers(model, work))
                ours.append(run_nanofn(llm, work))

        benchmark.pedantic(take_turns, rounds=1, iterations=1)
    wanted = sum(count for _, count in make_work(num_requests, lengths, 0))
    result = {
        "benchmark": "transformers_cpu",
        "num_requests": num_requests,
        "lengths": lengths,
        "wanted_tokens": wanted,
        "threads": torch.get_num_threads(),
        "transformers_tok_per_s": wanted / statistics.median(theirs),
        "nanofn_tok_per_s": wanted / statistics.median(ours),
        "ratio": statistics.median(theirs) / statistics.median(ours),
        "seconds": {"transformers": theirs, "nanofn": ours},
    }
    benchmark.extra_info.update(result)
    print(f"\n{num_requests} requests, {lengths} lengths: {result['ratio']:.2f} times transformers' tokens per second")
    if IS_FULL:
        append_record("transformers_cpu", result)
