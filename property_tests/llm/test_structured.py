"""Structured output: what a form asks for is what comes, at every depth, beside other requests and after preemption."""

import json
import re
import sys

import numpy as np
import pytest

from conventions.source import ROOT
from nanofn import LLM, SamplingParams, StructuredOutputsParams
from nanofn.errors import ParameterError, RequestError
from nanofn.text.grammar import MOST_APART, AllowedIds, Grammars

VOCAB_SIZE = 4_099
"""More ids than the model has: no multiple of 32."""

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "likes": {"type": "array", "items": {"enum": ["tea", "bread"]}, "maxItems": 3},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}
FORMS = {
    "regex": {"regex": r"[0-9]{3}-[a-c]{1,8}"},
    "choice": {"choice": ["red", "green", "dark blue"]},
    "schema": {"json": PERSON, "disable_any_whitespace": True},
    "schema as text": {"json": json.dumps(PERSON), "disable_any_whitespace": True},
    "lark": {"grammar": 'start: ("ab" | "cd") ("," ("ab" | "cd")){0,4}'},
    "gbnf": {"grammar": 'root ::= "yes" | "no" [!?]'},
}


def is_right(name, text):
    """Whether a text has a form."""
    if name.startswith("schema"):
        found = json.loads(text)
        assert found.keys() == {"name", "age", "likes"}
        assert isinstance(found["name"], str)
        assert 0 <= found["age"] <= 120
        return set(found["likes"]) <= {"tea", "bread"}
    expected = {
        "regex": r"[0-9]{3}-[a-c]{1,8}",
        "choice": "red|green|dark blue",
        "lark": r"(ab|cd)(,(ab|cd)){0,4}",
        "gbnf": "yes|no[!?]",
    }
    return re.fullmatch(expected[name], text) is not None


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_an_output_has_its_form(llm, name, temperature):
    """Whatever the model would rather say; three children each."""
    params = SamplingParams(
        n=3, temperature=temperature, seed=1, max_tokens=100, structured_outputs=StructuredOutputsParams(**FORMS[name])
    )
    for output in llm.generate("Once", params)[0].outputs:
        assert output.finish_reason == "stop"
        assert is_right(name, output.text)


@pytest.mark.parametrize(("depth", "is_fused"), [(1, False), (2, False), (3, False), (2, True), (3, True)])
def test_forms_hold_beside_other_requests_and_under_preemption(depth, is_fused, request):
    """In a pool too small for all of them the tokens are those of a run alone."""
    if is_fused:
        request.getfixturevalue("fused")
    params = [
        SamplingParams(temperature=1.5, seed=7, max_tokens=60, structured_outputs=form) for form in FORMS.values()
    ]
    params += [SamplingParams(temperature=1.0, seed=3, max_tokens=30)] * 3
    prompts = [f"Once upon a time {place}" for place in range(len(params))]
    with LLM(max_model_len=128, max_num_seqs=6, block_size=8, num_kv_blocks=16, depth=depth) as llm:
        together = llm.generate(prompts, params)
        assert sum(output.metrics.num_preemptions for output in together) > 0
        for name, output in zip(FORMS, together, strict=False):
            assert is_right(name, output.text)
        for prompt, each, output in zip(prompts, params, together, strict=True):
            assert llm.generate(prompt, each)[0].outputs[0].token_ids == output.outputs[0].token_ids


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"json": {"not": {"type": "string"}}}, 'Unimplemented keys: ["not"]'),
        ({"json": '{"type": '}, "structured_outputs"),
        ({"regex": "(a"}, "unclosed group"),
        ({"grammar": "root ::= undefined_rule"}, "undefined_rule"),
        ({"json": ""}, "structured_outputs"),
        ({"json": "[]", "disable_any_whitespace": True}, "the schema is []"),
        ({"json": '{"type": ', "disable_any_whitespace": True}, "structured_outputs"),
        ({"choice": ["\ud800"]}, "structured_outputs"),
        ({"json": "[" * 100_000}, "recursion limit"),
        ({"json": "[" * 100_000, "disable_any_whitespace": True}, "recursion depth"),
        ({"regex": r"[^\s\S]"}, "no output of this form"),
        ({"json": {"$ref": "#"}}, "no output of this form"),
        ({"grammar": "start: start"}, "no output of this form"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_form_that_cannot_be_carried_out_is_refused_before_anything_is_queued(llm, form, message):
    """By name; the next call runs."""
    with pytest.raises(RequestError, match="prompt 1: structured_outputs") as caught:
        llm.generate(["a", "b"], [SamplingParams(), SamplingParams(structured_outputs=form)])
    assert message in str(caught.value)
    assert not llm.has_unfinished
    assert len(llm.generate("a", SamplingParams(max_tokens=3, ignore_eos=True))[0].outputs[0].token_ids) == 3


def test_without_the_package_the_error_says_what_to_install(llm, monkeypatch):
    """llguidance is an extra."""
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(RequestError, match="pip install llguidance"):
        llm.generate("a", SamplingParams(structured_outputs={"regex": "only here"}))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"regex": "a", "choice": ["b"]},
        {"choice": []},
        {"regex": 3},
        {"choice": "ab"},
        {"json": {"enum": {1, 2}}},
        {"json": {"const": float("nan")}},
        {"json_object": "no"},
        {"json": "{}", "disable_any_whitespace": "no"},
    ],
)
def test_exactly_one_form_of_the_right_type_is_wanted(fields):
    """None, two, or a value of another type are refused when the parameters are made."""
    with pytest.raises(ParameterError, match="structured_outputs"):
        StructuredOutputsParams(**fields)


def test_an_unknown_field_is_named():
    """As Python does for a keyword."""
    with pytest.raises(TypeError, match="no field 'schema'"):
        StructuredOutputsParams(schema={})


def test_an_unknown_field_in_a_dict_is_named():
    """It is the value of a field of SamplingParams, so it is that field's error."""
    with pytest.raises(ParameterError, match="no field 'schema'"):
        SamplingParams(structured_outputs={"schema": {}})


def test_a_pydantic_model_is_a_schema():
    """Anything with `model_json_schema`."""

    class Model:
        @staticmethod
        def model_json_schema():
            return {"type": "boolean"}

    assert StructuredOutputsParams(json=Model).json == '{"type": "boolean"}'


def test_a_grammar_counts_more_than_what_would_leave_nothing(llm):
    """`min_tokens` beyond the only choice, and a bad word in it, do not lead out of the form."""
    params = SamplingParams(max_tokens=20, min_tokens=10, bad_words=["red"], structured_outputs={"choice": ["red"]})
    assert llm.generate("a", params)[0].text == "red"


def test_a_complete_output_ends_although_the_end_token_is_ignored(llm):
    """With `ignore_eos` as well: nothing more may come."""
    params = SamplingParams(max_tokens=20, ignore_eos=True, structured_outputs={"choice": ["red"]})
    output = llm.generate("a", params)[0].outputs[0]
    assert output.text == "red"
    assert output.finish_reason == "stop"


CHOICES = [f'item-{number:05d}/"é😀\\n' for number in range(2_500)]
"""More than llguidance takes as alternatives of a rule, with what notations give a meaning to."""


def test_there_may_be_any_number_of_choices(llm):
    """Many that begin alike: one of them comes whole, also a rare one; and beginnings of each other are told apart."""
    form = StructuredOutputsParams(choice=CHOICES)
    for seed in range(3):
        output = llm.generate("a", SamplingParams(temperature=2.0, seed=seed, structured_outputs=form))[0].outputs[0]
        assert output.finish_reason == "stop"
        assert output.text in CHOICES
    form = StructuredOutputsParams(choice=["a", "ab", "abc", "abc"])
    outputs = llm.generate("a", SamplingParams(n=32, seed=0, temperature=3.0, structured_outputs=form))[0].outputs
    assert {output.text for output in outputs} == {"a", "ab", "abc"}


def test_an_output_whose_grammar_goes_beyond_a_limit_ends_with_an_error(llm, caplog):
    """Its text is not complete, so the reason is not "stop"; children and batch mates go on, and a warning says which limit."""
    rule = "root ::= " + " | ".join(json.dumps(each, ensure_ascii=False) for each in CHOICES)
    params = [
        SamplingParams(n=2, max_tokens=40, structured_outputs={"grammar": rule}),
        SamplingParams(seed=1, structured_outputs={"choice": ["red"]}),
    ]
    failed, other = llm.generate(["a", "b"], params)
    assert [output.finish_reason for output in failed.outputs] == ["error", "error"]
    assert not {output.text for output in failed.outputs} & set(CHOICES)
    assert other.outputs[0].text == "red"
    assert "max is 2000" in caplog.text


def test_any_json_without_blanks(llm):
    """The schema `true` allows anything, with `disable_any_whitespace` as without."""
    for form in ({"json": "true"}, {"json": "true", "disable_any_whitespace": True}):
        params = SamplingParams(
            max_tokens=60, seed=1, logit_bias={llm.tokenizer.eos_token_id: 20.0}, structured_outputs=form
        )
        output = llm.generate("A number:", params)[0].outputs[0]
        assert output.finish_reason == "stop"
        json.loads(output.text)


def test_max_tokens_cuts_a_form_short(llm):
    """The reason says that it is not complete."""
    params = SamplingParams(max_tokens=3, structured_outputs={"regex": "[0-9]{40}"})
    output = llm.generate("a", params)[0].outputs[0]
    assert output.finish_reason == "length"
    assert re.fullmatch("[0-9]+", output.text)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_masks_of_many_outputs_are_those_of_each(llm, count):
    """Worked out together in one memory, at every place of several outputs, with the bits that llguidance gives alone."""
    grammars = Grammars(llm.tokenizer, VOCAB_SIZE, [llm.tokenizer.eos_token_id])
    forms = [StructuredOutputsParams(**form) for form in FORMS.values()]
    matchers = [grammars.compile(forms[place % len(forms)]).start() for place in range(count)]
    allowed_ids = AllowedIds()
    for number in range(4):
        words = allowed_ids.of(matchers)
        assert words.shape == (count, -(-VOCAB_SIZE // 32))
        for matcher, row in zip(matchers, words, strict=True):
            alone = np.frombuffer(matcher.inner.compute_bitmask(), dtype="<u4")
            assert np.array_equal(row, alone[: len(row)])
        for matcher, row in zip(matchers, words.copy(), strict=True):
            allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
            matcher.advance(int(allowed[number % len(allowed)]))
        matchers = [matcher for matcher in matchers if not matcher.is_over]
        count = len(matchers)


def test_outputs_of_one_grammar_do_not_reach_each_other(llm):
    """More of them than there are matchers that share nothing: each goes its own way, and a late one starts at the beginning."""
    grammar = Grammars(llm.tokenizer, VOCAB_SIZE, [llm.tokenizer.eos_token_id]).compile(
        StructuredOutputsParams(regex="(ab|ba)*")
    )
    first, second = (llm.tokenizer.encode_plain(letter)[0] for letter in "ab")
    matchers = [grammar.start() for _ in range(2 * MOST_APART + 1)]
    for place, matcher in enumerate(matchers):
        matcher.advance((first, second)[place % 2])
    words = AllowedIds().of([*matchers, grammar.start()])
    allowed = [set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))) for row in words]
    for place, ids in enumerate(allowed[:-1]):
        assert ((first in ids), (second in ids)) == (place % 2 == 1, place % 2 == 0)
    assert {first, second} <= allowed[-1]


def test_an_end_token_ends_a_complete_output_although_it_is_ignored(llm):
    """Where more may follow, with `ignore_eos` as well; before it is complete, no end token comes."""
    params = SamplingParams(
        max_tokens=20,
        ignore_eos=True,
        logit_bias={llm.tokenizer.eos_token_id: 1e9},
        structured_outputs={"regex": "[a-c]{4,9}"},
    )
    output = llm.generate("a", params)[0].outputs[0]
    assert re.fullmatch("[a-c]{4,9}", output.text)
    assert output.finish_reason == "stop"


def test_the_documented_example_is_completed(capsys):
    """The page's example prints what the page says: a person, as JSON."""
    page = (ROOT / "docs" / "structured_output.md").read_text(encoding="utf-8")
    example, shown = re.findall(r"^```\w+\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    exec(example, {})
    printed = capsys.readouterr().out
    assert json.loads(printed).keys() == {"name", "age"}
    assert printed == shown
