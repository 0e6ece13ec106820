"""Where an output ends and what its text is: stop strings, stop tokens, min_tokens, max_tokens, at every depth."""

import pytest
from attrs import evolve
from hypothesis import given, settings, strategies as st

from llm.scripted import LIMITS, Run, logprob_of
from nanofn.errors import RequestError
from nanofn.sampling.params import SamplingParams
from nanofn.text.detokenizer import Detokenizer
from text.test_detokenizer import byte_level_ids
from text.test_stop_strings import ending
from text.tokenizers_for_tests import byte_level

TOKENIZER = byte_level()
EOS = TOKENIZER.eos_token_id
WHOLE = {text: TOKENIZER.encode_plain(text)[0] for text in (" a", "ab")}
"""Tokens of two characters, so that a stop string may begin or end inside a token."""

SMALL = evolve(LIMITS, block_size=2, num_blocks=22, max_num_seqs=3, max_model_len=44, max_num_batched_tokens=5)
"""Little more than one sequence fits: whoever runs beside another is preempted now and then."""


def encode(text):
    """One token a byte."""
    return [byte_level_ids(byte)[0] for byte in text.encode()]


@st.composite
def outputs_of_a_model(draw):
    """Token ids of a short text, cut at random between one token a byte and the longest tokens; some invalid bytes."""
    pieces = draw(st.lists(st.sampled_from(["a", "b", "ab", " a", "é", "€", "😀", "\xff", "x"]), max_size=14))
    ids = []
    for piece in pieces:
        if piece == "\xff":
            ids += byte_level_ids(0xFF)
        else:
            ids += [WHOLE[piece]] if piece in WHOLE and draw(st.booleans()) else encode(piece)
    return ids


def expected(ids, params):
    """(text, token ids, finish reason, stop reason) by definition, from all that the model would say."""
    detokenizer, pieces = Detokenizer(TOKENIZER), list[str]()
    stops, min_tokens = params.stop or (), params.min_tokens
    for count, token_id in enumerate(ids, 1):
        stops_here = token_id == EOS and count > min_tokens
        pieces.append("" if stops_here else detokenizer.push([token_id]))
        is_last = stops_here or count == params.max_tokens
        if is_last:
            pieces[-1] += detokenizer.finish()
        text, first = "".join(pieces), len("".join(pieces[:min_tokens]))
        found = ending(text, stops, first=first) if count > min_tokens else None
        if found is not None:
            end, start, stop = found
            return text[: end if params.include_stop_str_in_output else start], tuple(ids[:count]), "stop", stop
        if is_last:
            return text, tuple(ids[:count]), "stop" if stops_here else "length", None
    raise AssertionError("the script is too short")


@settings(max_examples=150)
@given(
    scripts=st.lists(outputs_of_a_model(), min_size=4, max_size=4),
    stops=st.lists(st.text("ab é€😀x\ufffd", min_size=1, max_size=4), max_size=3),
    is_included=st.booleans(),
    min_tokens=st.integers(0, 6),
    more_tokens=st.integers(0, 12),
    depth=st.integers(1, 3),
    limits=st.sampled_from([LIMITS, SMALL]),
    streams=st.booleans(),
)
def test_outputs_end_where_the_definition_says(
    scripts, stops, is_included, min_tokens, more_tokens, depth, limits, streams
):
    """Two requests of two children each, at any depth, preempted or not, streamed or not: text, tokens and reasons."""
    params = SamplingParams(
        n=2,
        stop=stops,
        include_stop_str_in_output=is_included,
        min_tokens=min_tokens,
        max_tokens=max(min_tokens + more_tokens, 1),
        logprobs=0,
    )
    prompts = [[1, 2, 3], [2, 2, 3]]

    def ids(prompt, child):
        return [*scripts[2 * (prompt[0] - 1) + child], *[EOS] * 40]

    def script(prompt, child, number):
        return ids(prompt, child)[number]

    run = Run(TOKENIZER, script, prompts, [params] * 2, limits=limits, depth=depth, streams=streams, eos=(EOS,))
    for prompt, output in zip(prompts, run.outputs, strict=True):
        for child, found in enumerate(output.outputs):
            text, token_ids, finish_reason, stop_reason = expected(ids(prompt, child), params)
            assert (text, token_ids) == (found.text, found.token_ids)
            assert (finish_reason, stop_reason) == (found.finish_reason, found.stop_reason)
            reported = [each[token_id].logprob for each, token_id in zip(found.logprobs, token_ids, strict=True)]
            assert [logprob_of(prompt, 3 + place) for place in range(len(token_ids))] == reported
            assert found.cumulative_logprob == sum(reported)
            if limits is LIMITS:
                assert run.num_sampled[tuple(prompt), child] <= len(token_ids) + depth - 1
            if streams:
                pieces = [each for each in run.deltas if (each.request_id, each.index) == (output.request_id, child)]
                assert text == "".join(piece.text for piece in pieces)
                assert token_ids == tuple(token_id for piece in pieces for token_id in piece.token_ids)
                assert [None] * (len(pieces) - 1) + [finish_reason] == [piece.finish_reason for piece in pieces]


def one(ids, *, depth=2, eos=(EOS,), prompt=(7,), **fields):
    """The only output of a model that says these ids and then the end token for ever."""
    params = SamplingParams(**{"max_tokens": 50, **fields})
    script = [*ids, *[EOS] * 60]
    run = Run(TOKENIZER, lambda _, __, number: script[number], [list(prompt)], [params], depth=depth, eos=eos)
    return run.outputs[0].outputs[0]


@pytest.mark.parametrize(("included", "text"), [(False, "ab"), (True, "abcd")])
def test_a_stop_string_right_before_the_end_token_counts(included, text):
    """`abcde` and the end token, at a depth where both are sampled before either is read; stop string `cd`."""
    for depth in (1, 2, 3):
        for shown in ("abcd", "abcde"):
            found = one(encode(shown), stop="cd", include_stop_str_in_output=included, depth=depth)
            assert (text, "stop", "cd") == (found.text, found.finish_reason, found.stop_reason)
            assert len(found.token_ids) == 4


def test_a_character_that_never_became_whole_may_complete_a_stop_string_at_the_end():
    """Held back to the last, the replacement character is text like any other, whether the end token or max_tokens came."""
    ids = [*encode("a"), *encode("€")[:2]]
    for fields in ({}, {"max_tokens": 3}):
        found = one(ids, stop="\ufffd", **fields)
        assert ("a", "stop", "\ufffd") == (found.text, found.finish_reason, found.stop_reason)


def test_a_stream_holds_back_what_may_be_a_stop_string_and_no_more():
    """Stop string `abd` in `xabcabd`: `ab` waits for what follows it, twice, and the second time never comes."""
    script = encode("xabcabdd")
    run = Run(
        TOKENIZER, lambda _, __, number: script[number], [[7]], [SamplingParams(stop="abd")], depth=1, streams=True
    )
    assert [delta.text for delta in run.deltas] == ["x", "", "", "abc", "", "", "", ""]


def test_text_of_the_first_min_tokens_tokens_is_not_searched():
    """`x` as token 2 and as token 7, min_tokens 5: the output ends at the seventh."""
    found = one(encode("axbbbbxb"), stop="x", min_tokens=5)
    assert ("axbbbb", 7, "x") == (found.text, len(found.token_ids), found.stop_reason)


@pytest.mark.parametrize("min_tokens", [0, 1, 4])
def test_the_end_token_counts_after_min_tokens_others(min_tokens):
    """A model that says nothing but the end token gives min_tokens + 1 of them."""
    found = one([], min_tokens=min_tokens)
    assert (min_tokens + 1, "stop") == (len(found.token_ids), found.finish_reason)


def test_the_end_token_as_the_last_allowed_one_is_a_stop():
    """Not "length"."""
    found = one(encode("abc"), max_tokens=4)
    assert ("abc", "stop", None) == (found.text, found.finish_reason, found.stop_reason)


@pytest.mark.parametrize(("included", "text"), [(False, "ab"), (True, "abc")])
def test_a_stop_tokens_text_is_part_of_the_output_on_request(included, text):
    """Its id is among the tokens either way; streamed and whole agree."""
    (stop,) = encode("c")
    params = SamplingParams(stop_token_ids=[stop], include_stop_str_in_output=included)
    script = encode("abcd")
    for streams in (False, True):
        run = Run(TOKENIZER, lambda _, __, number: script[number], [[7]], [params], streams=streams)
        found = run.outputs[0].outputs[0]
        assert (text, "stop", stop) == (found.text, found.finish_reason, found.stop_reason)
        assert tuple(script[:3]) == found.token_ids
        assert text == "".join(delta.text for delta in run.deltas) or not streams


def test_a_token_that_ends_the_output_completes_no_stop_string_unless_its_text_is_wanted():
    """Stop token `c` after `ab`, stop string `bc`: the token counts; with its text wanted, the string does."""
    (stop,) = encode("c")
    apart = one(encode("abcd"), stop_token_ids=[stop], stop="bc")
    assert ("ab", stop) == (apart.text, apart.stop_reason)
    joined = one(encode("abcd"), stop_token_ids=[stop], stop="bc", include_stop_str_in_output=True)
    assert ("abc", "bc") == (joined.text, joined.stop_reason)


def test_every_end_token_is_known_and_ignored_together():
    """Two end tokens, the checkpoint's and the tokenizer's: either ends the output, ignore_eos passes over both."""
    (other,) = encode("e")
    for token_id in (EOS, other):
        found = one([*encode("ab"), token_id], eos=(EOS, other))
        assert ("ab", 3, None) == (found.text, len(found.token_ids), found.stop_reason)
        ignored = one([*encode("ab"), token_id, *encode("cd")], eos=(EOS, other), ignore_eos=True, max_tokens=5)
        assert ("length", 5) == (ignored.finish_reason, len(ignored.token_ids))


def test_a_prompt_that_ends_inside_a_character_leaves_the_text_to_the_output():
    """The output is decoded by itself: a lonely last byte is a replacement character, nothing of the prompt comes out."""
    *first, last = encode("€")
    found = one([last, *encode("ab")], prompt=(*encode("Hello "), *first))
    assert found.text == "\ufffdab"


@settings(max_examples=30)
@given(st.lists(st.integers(0, TOKENIZER.vocab_size + 40), min_size=1, max_size=30), st.booleans())
def test_no_token_ids_make_decoding_fail(ids, streams):
    """Any ids, those without a token among them: an output comes, its pieces join to its text."""
    script = [*ids, *[EOS] * 9]
    params = SamplingParams(max_tokens=len(ids), logprobs=0, stop="nowhere" if streams else None, ignore_eos=True)
    run = Run(TOKENIZER, lambda _, __, number: script[number], [[7]], [params], streams=streams)
    assert run.outputs[0].outputs[0].token_ids == tuple(ids)
    assert run.outputs[0].outputs[0].text == TOKENIZER.decode(ids)
    if streams:
        assert "".join(delta.text for delta in run.deltas) == TOKENIZER.decode(ids)


def test_without_detokenization_no_text_comes_on_any_way():
    """The result's text is empty and so are the pieces of a stream; the tokens are there."""
    params = SamplingParams(detokenize=False)
    script = [*encode("abc"), EOS, EOS]
    run = Run(TOKENIZER, lambda _, __, number: script[number], [[7]], [params], streams=True, eos=(EOS,))
    assert ("", 4) == (run.outputs[0].outputs[0].text, len(run.outputs[0].outputs[0].token_ids))
    assert "".join(delta.text for delta in run.deltas) == ""


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_children_that_end_at_different_times_come_in_order(depth):
    """Three children of 2, 5 and 9 tokens: outputs 0, 1, 2, each its own text."""
    script = {0: encode("a"), 1: encode("bbbb"), 2: encode("cccccccc")}

    def sampled(prompt, child, number):
        return [*script[child], *[EOS] * 9][number]

    run = Run(TOKENIZER, sampled, [[7]], [SamplingParams(n=3)], depth=depth, eos=(EOS,))
    assert [(0, "a", 2), (1, "bbbb", 5), (2, "cccccccc", 9)] == [
        (each.index, each.text, len(each.token_ids)) for each in run.outputs[0].outputs
    ]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_preemption_moves_no_ending(depth):
    """Four sequences in a pool for little more than one: each ends at the stop string that its tokens complete."""
    texts = {(prompt, child): f"{'a' * (14 + 3 * child + prompt)}b€xb" for prompt in (1, 2) for child in (0, 1)}

    def script(prompt, child, number):
        return encode(texts[prompt[0], child] + "c" * 20)[number]

    params = SamplingParams(n=2, stop=["€x", "xb"], max_tokens=40, logprobs=0)
    run = Run(TOKENIZER, script, [[1, 2, 3], [2, 2, 3]], [params] * 2, limits=SMALL, depth=depth, streams=True)
    assert sum(output.metrics.num_preemptions for output in run.outputs) > 0
    for output in run.outputs:
        for child, found in enumerate(output.outputs):
            text = texts[output.prompt_token_ids[0], child]
            assert (text[:-3], "€x") == (found.text, found.stop_reason)
            assert len(found.logprobs) == len(found.token_ids) == len(encode(text)) - 1


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_failure_at_any_executor_call_moves_no_ending(depth):
    """For every launch and every collect of the run: it raises once, and text, pieces and log-probabilities are right."""
    text, params = "aab€xb", SamplingParams(n=2, stop=["€x"], max_tokens=20, logprobs=0)

    def run(fails_at):
        script = encode(text + "c" * 20)
        return Run(
            TOKENIZER, lambda _, __, number: script[number], [[1, 2, 3], [2, 2, 3]], [params] * 2,
            limits=SMALL, depth=depth, streams=True, fails_at=fails_at,
        )  # fmt: skip

    num_calls = run(frozenset()).num_calls
    assert num_calls > 12
    for call in range(1, num_calls + 1):
        failed = run({call})
        for output in failed.outputs:
            for child, found in enumerate(output.outputs):
                assert ("aab", "€x", 7) == (found.text, found.stop_reason, len(found.token_ids))
                reported = [
                    each[token_id].logprob for each, token_id in zip(found.logprobs, found.token_ids, strict=True)
                ]
                assert [logprob_of(output.prompt_token_ids, 3 + place) for place in range(7)] == reported
                pieces = [d.text for d in failed.deltas if (d.request_id, d.index) == (output.request_id, child)]
                assert "".join(pieces) == "aab"


def test_special_tokens_without_blanks_between_them(llm, monkeypatch):
    """The text is what it is anyway; a tokenizer that puts blanks there is refused by name, where it would matter."""
    end = llm.tokenizer.eos_token_id
    params = SamplingParams(
        max_tokens=3,
        ignore_eos=True,
        skip_special_tokens=False,
        logit_bias={end: 1e9},
        spaces_between_special_tokens=False,
    )
    text = llm.tokenizer.decode([end], skip_special_tokens=False)
    assert llm.generate("a", params)[0].text == text * 3
    monkeypatch.setattr(llm.tokenizer, "joins_special_tokens", False)
    with pytest.raises(RequestError, match="spaces_between_special_tokens is False"):
        llm.generate("a", params)
    assert llm.generate("a", params.replace(skip_special_tokens=True))[0].text == ""
    assert llm.generate("a", params.replace(detokenize=False))[0].outputs[0].token_ids == (end,) * 3
