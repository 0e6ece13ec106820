"""Short ways to write a request, a work and a decision in tests of single facts."""

from nanofn.config import Limits
from nanofn.lab.work import Work
from nanofn.request import Request
from nanofn.state.decision import Decision
from nanofn.state.effects import Refused


def limits(block_size=4, num_blocks=16, **options):
    """Limits in which everything fits that a test does not forbid."""
    defaults = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 1_000,
        "max_model_len": num_blocks * block_size + 1,
    }
    return Limits(block_size, num_blocks, **defaults | options)


def work(*requests, **options):
    """A work with some requests arrived."""
    started = Work(limits(**options))
    for each in requests:
        started.arrive(each)
    return started


def request(request_id, prompt, max_tokens=8, **facts):
    """A request; the prompt as token ids, or as a length: then each request has tokens of its own."""
    tokens = (
        tuple(prompt) if not isinstance(prompt, int) else tuple(range(1_000 * request_id, 1_000 * request_id + prompt))
    )
    return Request(request_id, tokens, max_tokens, **facts)


def grants(*pairs, **rest):
    """A decision that grants (sequence, tokens) pairs; a bare sequence id gets all it can."""
    return Decision(tuple([pair if isinstance(pair, tuple) else (pair, 1_000) for pair in pairs]), **rest)


def planned(step_plan):
    """Sequence to (first position, number of tokens) of a plan's entries."""
    return {entry.sequence_id: (entry.first_position, entry.num_tokens) for entry in step_plan.entries}


def refusals(step_plan):
    """Sequence to refusal."""
    return {effect.sequence_id: effect.refusal for effect in step_plan.effects if isinstance(effect, Refused)}
