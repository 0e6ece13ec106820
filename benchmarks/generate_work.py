"""The works of the benchmark of generate(): prompts of token ids, and how to sample after each."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from attrs import frozen

from nanofn import SamplingParams
from schedule_work import standard_work

Requests = list[tuple[Sequence[int], int]]
"""(prompt, number of output tokens) pairs."""


@frozen
class Run:
    """One call of `generate`.

    Attributes:
        work: Its name on the command line.
        variant: Which of several runs of a work, taken in turns; "" if it is the only one.
        requests: Prompts, with the number of tokens that each output is to have.
        params: One per prompt.
    """

    work: str
    variant: str
    requests: Requests
    params: list[SamplingParams]

    @property
    def name(self) -> str:
        """What tables and files call it."""
        return f"{self.work}-{self.variant}" if self.variant else self.work

    @property
    def is_captured(self) -> bool:
        """Whether graphs hold the whole of a decode step: reports of log-probabilities are launched."""
        return self.variant != REPORTED

    @property
    def prompts(self) -> list[list[int]]:
        """The prompts as `generate` takes them."""
        return [list(prompt) for prompt, _ in self.requests]

    @property
    def num_prompt_tokens(self) -> int:
        """Of all prompts."""
        return sum(len(prompt) for prompt, _ in self.requests)

    @property
    def num_output_tokens(self) -> int:
        """Of all outputs."""
        return sum(num_output for _, num_output in self.requests)


def equal_work(num_requests: int, num_prompt: int, num_output: int, num_shared: int = 0) -> Requests:
    """Draw requests of one length, after a prefix that all share."""
    random = Random(str((num_requests, num_prompt, num_output, num_shared)))  # no two works begin alike
    draw = lambda count: [random.randint(0, 10_000) for _ in range(count)]  # noqa: E731
    prefix = draw(num_shared)
    return [(prefix + draw(num_prompt), num_output) for _ in range(num_requests)]


WORKS: dict[str, dict[str, Callable[[], Requests]]] = {
    "standard": {"full": standard_work, "smoke": partial(standard_work, 6, 12)},
    "batch1": {"full": partial(equal_work, 1, 128, 512), "smoke": partial(equal_work, 1, 8, 12)},
    "batch64": {"full": partial(equal_work, 64, 128, 256), "smoke": partial(equal_work, 4, 8, 12)},
    "shared-prefix": {"full": partial(equal_work, 256, 64, 128, 2_048), "smoke": partial(equal_work, 6, 8, 12, 128)},
    "long-context": {"full": partial(equal_work, 16, 16_384, 256), "smoke": partial(equal_work, 2, 256, 12)},
    "sampling": {"full": partial(equal_work, 256, 512, 128), "smoke": partial(equal_work, 8, 4, 12)},
}
"""Name to its requests at either size.

What `sampling` compares reads the same K/V, most of it of prompts: greedy outputs of a random model repeat themselves, and an
H200 reads such data faster (with 32 tokens in and 1,024 out, plain sampling took 180 us a step more, of which 40 were in its
graphs). Its contexts average 576 tokens, about what they do in the standard work.
"""

NEVER_COMPLETE = {
    "type": "array",
    "minItems": 1_000,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer"},
            "married": {"type": "boolean"},
            "colours": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
        },
        "required": ["name", "age", "married", "colours"],
        "additionalProperties": False,
    },
}
"""A list of people that no output of this benchmark can finish. Short names, and no blanks between the parts: a random model
would go on with either for ever, and the grammar would have nothing more to decide."""

GREEDY, PLAIN, FILTERED, REPORTED, STRUCTURED = VARIANTS = ("greedy", "plain", "filters", "logprobs", "schema")
"""Of the work `sampling`; the others are sampled as in nano-vllm's benchmark."""


def sampling_params(variant: str, max_tokens: int, row: int) -> SamplingParams:
    """How a row is sampled. Every output has exactly `max_tokens` tokens.

    With `min_tokens` the end token is not ignored but kept out of the choice, which is the work that is to be measured.
    """
    if variant in {FILTERED, REPORTED}:
        return SamplingParams(
            temperature=0.8, top_p=0.95, top_k=50, min_p=0.02, presence_penalty=0.2, frequency_penalty=0.2,
            repetition_penalty=1.1, min_tokens=max_tokens, max_tokens=max_tokens,
            logprobs=5 if variant == REPORTED else None,
        )  # fmt: skip
    schema = {"json": json.dumps(NEVER_COMPLETE), "disable_any_whitespace": True}
    form = schema if variant == STRUCTURED and row % 4 == 0 else None
    temperature = {"": 0.6, PLAIN: 1.0}.get(variant, 0.0)
    return SamplingParams(temperature=temperature, max_tokens=max_tokens, ignore_eos=True, structured_outputs=form)


def runs_of(work: str, size: str, vocab_size: int, shift: int) -> list[Run]:
    """Make a work's calls.

    Args:
        work: Key of `WORKS`.
        size: "full" or "smoke".
        vocab_size: Ids are below it.
        shift: Added to every id: another one in each repeat, so that no repeat finds a cached prefix.
    """
    drawn = WORKS[work][size]()
    variants = VARIANTS if work == "sampling" else ("",)
    return [
        Run(
            work,
            variant,
            [
                ([(each + number + shift * len(variants)) % vocab_size for each in prompt], count)
                for prompt, count in drawn
            ],
            [sampling_params(variant, count, row) for row, (_, count) in enumerate(drawn)],
        )
        for number, variant in enumerate(variants)
    ]
