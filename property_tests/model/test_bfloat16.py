"""In bfloat16, logits stray from fp32 hardly more than those of transformers do, on a CPU and on a GPU."""

from itertools import islice

import pytest
import torch
from transformers import AutoModelForCausalLM

from model.paging import Entry, run_to_end, start_paging
from nanofn.device.checkpoint import load_checkpoint
from nanofn.embedded.conversations import generated
from nanofn.llm.locate import embedded_model
from nanofn.text.tokenizer import load_tokenizer

MOST = 2.0
"""How many times transformers' own error ours may be."""

NUM_TEXTS, CHUNK = 12, 7


@pytest.fixture(scope="module")
def sequences():
    """Whole texts of the generator, as ids: every position is predicted from what really came before."""
    tokenizer = load_tokenizer(embedded_model())
    return [tokenizer.encode(text) for text in islice(generated(21), NUM_TEXTS)]


@torch.inference_mode()
def transformers_logits(dtype, sequences, device):
    """What transformers says at each position, sequence by sequence, as fp32."""
    model = AutoModelForCausalLM.from_pretrained(embedded_model(), dtype=dtype).eval().to(device)
    return [model(torch.tensor([ids], device=device), use_cache=False).logits[0].float() for ids in sequences]


def our_logits(dtype, sequences, device, steps):
    """What the engine's decoder says at each position, over a paged cache."""
    params = load_checkpoint(embedded_model(), dtype=dtype, device=device).params
    return [logits.float() for logits in run_to_end(start_paging(params, sequences, 16), steps)]


def errors(found, reference):
    """The root mean square and the largest of all differences."""
    difference = torch.cat([(ours - theirs).flatten() for ours, theirs in zip(found, reference, strict=True)])
    return difference.square().mean().sqrt().item(), difference.abs().max().item()


def prompts_at_once(sequences):
    """All sequences whole, in one step."""
    return [[Entry(row, len(ids)) for row, ids in enumerate(sequences)]]


def chunks_then_tokens(sequences):
    """Half of each sequence in chunks, the rest token by token, all sequences beside each other."""
    counts = [
        [*[CHUNK] * (len(ids) // 2 // CHUNK), *[1] * (len(ids) - len(ids) // 2 // CHUNK * CHUNK)] for ids in sequences
    ]
    return [
        [Entry(row, each[step]) for row, each in enumerate(counts) if step < len(each)]
        for step in range(max(map(len, counts)))
    ]


@pytest.mark.parametrize("schedule", [prompts_at_once, chunks_then_tokens])
def test_errors_of_bfloat16_are_at_most_twice_those_of_transformers(schedule, sequences, device, capsys):
    """Against transformers in fp32: root mean square and largest error of ours, and of transformers in bfloat16."""
    reference = transformers_logits(torch.float32, sequences, device)
    theirs = errors(transformers_logits(torch.bfloat16, sequences, device), reference)
    ours = errors(our_logits(torch.bfloat16, sequences, device, schedule(sequences)), reference)
    with capsys.disabled():
        print(f" (rms {ours[0]:.4f} against {theirs[0]:.4f}, largest {ours[1]:.3f} against {theirs[1]:.3f})", end="")
    assert 0 < ours[0] <= MOST * theirs[0]
    assert ours[1] <= MOST * theirs[1]


def test_in_float32_ours_are_transformers_logits(sequences, device):
    """The yardstick itself: in fp32 both agree to a thousandth of bfloat16's error."""
    reference = transformers_logits(torch.float32, sequences, device)
    ours = errors(our_logits(torch.float32, sequences, device, prompts_at_once(sequences)), reference)
    theirs = errors(transformers_logits(torch.bfloat16, sequences, device), reference)
    assert ours[0] < theirs[0] / 1000
