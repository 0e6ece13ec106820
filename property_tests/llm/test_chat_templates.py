"""Chat templates that take arguments, and answers that begin with thoughts."""

import pytest

from nanofn import SamplingParams
from nanofn.llm.output import CompletionOutput, RequestMetrics, RequestOutput
from nanofn.llm.reasoning import answers

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n{% endif %}"
)
TURN = [{"role": "user", "content": "Hello"}]


def test_what_the_template_reads_is_passed_on(llm):
    """`enable_thinking` as Qwen3's template reads it: False puts an empty thought into the prompt, and none into the output."""
    ids = {}
    for given in (None, {"enable_thinking": True}, {"enable_thinking": False}):
        output = llm.chat(
            TURN, SamplingParams(max_tokens=4, seed=1), chat_template=TEMPLATE, chat_template_kwargs=given
        )[0]
        ids[str(given)] = output.prompt_token_ids
    without, with_thoughts, none = ids.values()
    assert without == with_thoughts
    assert len(none) > len(without)
    assert llm.tokenizer.decode(none).endswith("assistant:<think>\n\n</think>\n")
    assert output.outputs[0].reasoning is None
    assert "think>" not in output.text


class Thinking:
    """A tokenizer whose template has the marks, and whose prompts end as told."""

    def __init__(self, prompt_end):
        self.prompt_end = prompt_end

    def thinks(self, chat_template):
        return True

    def decode(self, token_ids, *, skip_special_tokens):
        return self.prompt_end


def result(text):
    """A result with one text."""
    output = CompletionOutput(0, text, (1,), None, None, "stop", None, 0)
    return RequestOutput(0, None, (1, 2), (output,), True, None, 0, RequestMetrics(0.0, 0.0, 0.0, 0))


@pytest.mark.parametrize(
    ("prompt_end", "text", "reasoning", "answer"),
    [
        ("assistant\n", "<think>\nWhy?\n</think>\n\nYes.", "Why?", "Yes."),
        ("assistant\n<think>\n", "Why?\n</think>\n\nYes.", "Why?", "Yes."),
        ("assistant\n<think>\n\n</think>\n", "Yes.", None, "Yes."),
        ("assistant\n", "Yes.", None, "Yes."),
        ("assistant\n", "<think>\nWhy? What if", "Why? What if", ""),
        ("assistant\n", "<think></think>Yes <think> no", "", "Yes <think> no"),
    ],
)
def test_thoughts_are_parted_from_the_answer(prompt_end, text, reasoning, answer):
    """Whoever wrote the opening mark, the prompt or the model; thoughts that never end leave no answer."""
    (output,) = answers(Thinking(prompt_end), [result(text)], None)
    assert (reasoning, answer) == (output.outputs[0].reasoning, output.text)


@pytest.mark.parametrize("prompt_end", ["assistant\n", "assistant\n<think>\n"])
def test_an_output_with_a_form_is_the_answer(prompt_end):
    """A form holds from the first token on, so nothing of it is a thought, unless the form has room for thoughts."""
    formed = SamplingParams(structured_outputs={"choice": ["yes", "no"]})
    free = SamplingParams()
    outputs = answers(Thinking(prompt_end), [result("yes"), result("Why?</think>No")], None, [formed, free])
    assert (None, "yes") == (outputs[0].outputs[0].reasoning, outputs[0].text)
    (output,) = answers(Thinking("<think>\n"), [result("Why?</think>No")], None, formed)
    assert ("Why?", "No") == (output.outputs[0].reasoning, output.text)
    (output,) = answers(Thinking("<think>\n"), [result("yes")], None, free)
    assert ("yes", "") == (output.outputs[0].reasoning, output.text)


def test_a_template_without_marks_leaves_texts_alone(llm):
    """`reasoning` is None, and the text whole."""
    output = llm.chat(TURN, SamplingParams(temperature=0.0, max_tokens=5))[0].outputs[0]
    assert output.reasoning is None
    assert output.text
