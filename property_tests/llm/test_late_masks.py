"""Late masks: a request with a form is planned ahead like any other, and each mask knows every token before it."""

import pytest
from attrs import evolve
from hypothesis import given, settings, strategies as st

from llm.scripted import LIMITS, Run
from nanofn import LLM, SamplingParams, StructuredOutputsParams
from nanofn.state.events import PrefixCacheReset
from nanofn.state.invariants import violations
from text.tokenizers_for_tests import byte_level

TOKENIZER = byte_level()
EOS = TOKENIZER.eos_token_id
SMALL = evolve(LIMITS, block_size=2, num_blocks=22, max_num_seqs=3, max_model_len=44, max_num_batched_tokens=5)
"""Little more than one sequence fits: whoever runs beside another is preempted now and then."""

REGEXES = ["a{3}", "[ab]{1,12}", "(ab|ba| a){2,6}", "[a-z]{20}", "é|€|x{2}"]


def script(prompt, child, number):
    """Some token that is not the end token, told from those of other places."""
    return (7 * prompt[0] + 3 * child + number * number) % 97


def form(regex, **fields):
    """Parameters that ask for a regular expression."""
    return SamplingParams(**{"max_tokens": 30, **fields}, structured_outputs=StructuredOutputsParams(regex=regex))


def said(run):
    """Token ids, texts and reasons of all outputs."""
    return [[(each.token_ids, each.text, each.finish_reason) for each in output.outputs] for output in run.outputs]


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("max_tokens", [29, 30])
@pytest.mark.parametrize("others", [0, 3])
def test_a_form_costs_no_step(depth, max_tokens, others):
    """Cut short or complete, alone or beside plain requests: at most depth - 1 steps more, as for a stop string."""
    plain = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    prompts = [[1, 2, 3]] * (others + 1)
    alike = Run(TOKENIZER, script, prompts, [plain] * (others + 1), depth=depth)
    mixed = Run(TOKENIZER, script, prompts, [plain] * others + [form("[ab]{30}", max_tokens=50)], depth=depth)
    cut = Run(TOKENIZER, script, prompts, [plain] * others + [form("[ab]{40}", max_tokens=max_tokens)], depth=depth)
    assert alike.num_launches <= max_tokens + 1
    assert mixed.outputs[-1].outputs[0].finish_reason == "stop"
    num_tokens = max(len(mixed.outputs[-1].outputs[0].token_ids), max_tokens * bool(others))
    assert mixed.num_launches <= num_tokens + (alike.num_launches - max_tokens) + depth - 1
    assert cut.outputs[-1].outputs[0].finish_reason == "length"
    assert cut.num_launches == alike.num_launches


@settings(max_examples=60)
@given(
    params=st.lists(
        st.builds(form, st.sampled_from(REGEXES), n=st.integers(1, 2), max_tokens=st.sampled_from([3, 30]))
        | st.builds(SamplingParams, max_tokens=st.integers(1, 20), stop=st.sampled_from([None, "a"])),
        min_size=1,
        max_size=4,
    ),
    limits=st.sampled_from([LIMITS, SMALL]),
    eos=st.sampled_from([(), (EOS,)]),
    streams=st.booleans(),
    failing=st.frozensets(st.integers(1, 60), max_size=2),
)
def test_outputs_do_not_depend_on_depth_mates_or_failures(params, limits, eos, streams, failing):
    """Each is what the request gets alone, a step at a time."""
    prompts = [[number, 2, 3] for number in range(1, len(params) + 1)]
    alone = [
        said(Run(TOKENIZER, script, [prompt], [each], depth=1, eos=eos))[0]
        for prompt, each in zip(prompts, params, strict=True)
    ]
    for depth in (1, 2, 3):
        run = Run(TOKENIZER, script, prompts, params, limits=limits, depth=depth, eos=eos, streams=streams)
        assert said(run) == alone
        for call in failing:
            run = Run(TOKENIZER, script, prompts, params, limits=limits, depth=depth, eos=eos, fails_at={call})
            assert said(run) == alone


@pytest.mark.parametrize("does", ["abort", "reset"])
@pytest.mark.parametrize(("depth", "is_fused"), [(2, False), (3, False), (3, True)])
def test_what_comes_while_masks_are_awaited_disturbs_nobody(does, depth, is_fused, request):
    """One with a form joins two plain ones; after each step in turn it is aborted, or everybody is preempted."""
    if is_fused:
        request.getfixturevalue("fused")
    plain = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
    with LLM(max_model_len=64, max_num_seqs=3, block_size=4, depth=depth) as llm:
        num_awaiting = 0
        expected = llm.generate(
            [[11, 12], [13] * 9, [14, 15]], [plain, plain, form("[a-d]{20}", temperature=1.0, seed=5)]
        )
        for after in range(7):
            ids = [llm.add_request(prompt, plain) for prompt in ([11, 12], [13] * 9)]
            results = {output.request_id: output for _ in range(3) for output in llm.step()}
            ids.append(llm.add_request([14, 15], form("[a-d]{20}", temperature=1.0, seed=5)))
            for _ in range(after):
                results |= {output.request_id: output for output in llm.step()}
            num_awaiting += llm._engine.loop._awaits_masks is not None
            if does == "abort":
                llm.abort(ids.pop())
            else:
                llm._engine.loop.apply(PrefixCacheReset(preempt_running=True))
            while llm.has_unfinished:
                results |= {output.request_id: output for output in llm.step()}
            for request_id, wanted in zip(ids, expected, strict=False):
                assert results[request_id].outputs[0].token_ids == wanted.outputs[0].token_ids
            assert not violations(llm.state)
        assert (num_awaiting > 0) == (depth > 2)
