"""The model card: what was found out about a trained model, as a page of the documentation."""

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

Margins = tuple[float, float, float]
"""The 1st, 5th and 50th percentile of the best logit's lead."""


@frozen(kw_only=True)
class Findings:
    """What the page is written from.

    Attributes:
        course: What `nanofn.embedded.train` wrote as training.json.
        corpora: What `nanofn.embedded.corpora` listed.
        model_bytes: Of model.safetensors.
        against: What the model is compared with.
        bits: Per source, bits per byte of the model and of the one it is compared with.
        samples: The first ten stories, whole.
        num_stories: How many stories were sampled.
        max_tokens: Most tokens of a story or an answer.
        num_ended: How many stories ended by themselves.
        answers: What was said and answered.
        margins: Per kind of prompt.
        picture: File name of the loss curve.
    """

    course: Mapping[str, Any]
    corpora: Sequence[Mapping[str, Any]]
    model_bytes: int
    against: str
    bits: Mapping[str, tuple[float, float]]
    samples: Sequence[str]
    num_stories: int
    max_tokens: int
    num_ended: int
    answers: Sequence[tuple[str, str]]
    margins: Mapping[str, Margins]
    picture: str


def write_card(found: Findings) -> str:
    """Write the page in Markdown."""
    parts = (_summary(found), _data(found), _training(found), _held_out(found), _samples(found), _greedy(found))
    return "\n\n".join(parts) + "\n"


def _summary(found: Findings) -> str:
    course = found.course
    return (
        "# The embedded model\n\n"
        f"A Qwen3-architecture model of {course['num_parameters']:,} parameters ({found.model_bytes / 2**20:.1f} MiB in "
        "bfloat16), trained from scratch by the recipe in `nanofn.embedded`. It tells short stories, answers simple "
        "questions and stops by itself. It knows nothing of the world, and what it says of it is often wrong: it is there "
        "to try the engine with.\n\n"
        "This page is written by `python -m nanofn.embedded.report`; samples and answers are not selected."
    )


def _data(found: Findings) -> str:
    rows = [
        f"| {entry['name']} | {entry['package']['name']} {entry['package']['version']} | {entry['package']['licence']} | "
        f"{entry['num_bytes'] / 1e6:.1f} MB | `{entry['sha256'][:16]}` |"
        for entry in found.corpora
    ]
    count = found.course["recipe"]["num_generated"]
    rows.append(
        f"| generated | `nanofn.embedded.conversations`, seed {found.course['recipe']['seed']} | "
        f"nanofn's own | {count:,} texts | |"
    )
    table = "\n".join(("| texts | from | licence | trained on | SHA-256 |", "|---|---|---|---|---|", *rows))
    return f"## Data\n\n{table}\n\nEvery fortieth group of natural texts is held out, whole chats and whole entries."


def _training(found: Findings) -> str:
    course, recipe = found.course, found.course["recipe"]
    num_tokens = recipe["num_steps"] * recipe["rows_per_step"] * recipe["row_length"]
    return (
        "## Training\n\n"
        f"Seed {recipe['seed']}, {recipe['num_steps']:,} updates of {recipe['rows_per_step']} rows of "
        f"{recipe['row_length']:,} tokens ({num_tokens / 1e6:.1f} million tokens), AdamW at a peak rate of "
        f"{recipe['peak_rate']:g}, dropout {recipe['dropout']:g}; {course['seconds']:.0f} s in all on {course['device']} "
        f"with torch {course['torch']}.\n\n"
        f"![Loss while training]({found.picture})"
    )


def _held_out(found: Findings) -> str:
    rows = [
        f"| {name} | {ours:.3f} | {theirs:.3f} | {(ours / theirs - 1) * 100:+.0f}% |"
        for name, (ours, theirs) in found.bits.items()
    ]
    table = "\n".join((f"| held-out text | this model | {found.against} | difference |", "|---|---|---|---|", *rows))
    return (
        "## Held-out text, in bits per byte\n\n"
        f"{table}\n\n"
        "Lower is better. Bits per byte do not depend on the vocabulary. Both models read the same texts, each alone and "
        "from an end token on; names of special tokens are not counted as bytes."
    )


def _samples(found: Findings) -> str:
    stories = "\n".join(f"{place}. {_one_line(text)}" for place, text in enumerate(found.samples, 1))
    answers = "\n".join(f"- **{_one_line(said)}** {_one_line(answer)}" for said, answer in found.answers)
    return (
        f"## {len(found.samples)} samples\n\n"
        "Temperature 0.8, the first seeds. "
        f"Of {found.num_stories} such stories, {found.num_ended} end by themselves within {found.max_tokens} tokens.\n\n"
        f"{stories}\n\n"
        f"## {len(found.answers)} turns\n\nGreedy, each a conversation of its own.\n\n{answers}"
    )


def _greedy(found: Findings) -> str:
    rows = [f"| {name} | {p1:.3f} | {p5:.3f} | {p50:.2f} |" for name, (p1, p5, p50) in found.margins.items()]
    table = "\n".join(("| prompts | p1 | p5 | p50 |", "|---|---|---|---|", *rows))
    return (
        "## Greedy margins\n\n"
        f"{table}\n\n"
        "By how much the best logit leads the next in greedy texts, in float32. Engines whose logits differ by less than "
        "half of a margin choose the same token."
    )


def _one_line(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("*", "\\*").replace("_", "\\_").replace("<", "\\<").replace("`", "\\`")
    return " ".join(escaped.split())
