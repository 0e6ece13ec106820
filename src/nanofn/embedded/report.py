"""Measures a trained model and writes its card: `python -m nanofn.embedded.report FOLDER --texts TEXTS`.

FOLDER is what `nanofn.embedded.train` wrote. `model_card.md` and `model_card.png`, the picture of the loss, go into
FOLDER/card. Samples come from the engine itself, measurements from the decoder that is trained; a test holds the two equal.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from tokenizers import Tokenizer

from nanofn.device.checkpoint import load_checkpoint
from nanofn.embedded.card import Findings, Margins, write_card
from nanofn.embedded.corpora import list_corpora, read_corpora
from nanofn.embedded.markup import END_OF_TEXT
from nanofn.embedded.measure import bits_per_byte, margins
from nanofn.embedded.mixture import all_sources
from nanofn.errors import ConfigError
from nanofn.llm.llm import LLM
from nanofn.llm.locate import embedded_model
from nanofn.sampling.params import SamplingParams

BEGINNING = "Once upon a time"
NUM_SAMPLES = 10
QUESTIONS = (
    "Hello, how are you?",
    "Tell me a story about a hedgehog.",
    "I have a purple umbrella. What colour is my umbrella?",
    "What is the opposite of early?",
    'What does "ancient" mean?',
)
NUM_MARGIN_PROMPTS, MAX_PROMPT_TOKENS, NUM_MARGIN_TOKENS = 32, 32, 48
PICTURE = "model_card.png"


@frozen(kw_only=True)
class Extent:
    """How much is measured.

    Attributes:
        num_stories: How many stories are sampled.
        max_tokens: Most tokens of a story or an answer.
        max_texts: Most held-out texts of a source.
    """

    num_stories: int = 100
    max_tokens: int = 256
    max_texts: int = 5000


def find_out(
    folder: Path, texts: Path, against: Path, device: torch.device, extent: Extent, called: str = ""
) -> Findings:
    """Measure everything that the card states.

    Args:
        folder: What `nanofn.embedded.train` wrote.
        texts: What it was trained on.
        against: The checkpoint to compare with.
        device: Where to measure and to generate.
        extent: How much of it.
        called: The other checkpoint's name on the card; empty takes one from where it lies.
    """
    model = folder / "model"
    course: dict[str, Any] = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    recipe = course["recipe"]
    sources = all_sources(read_corpora(texts), recipe["seed"], recipe["num_generated"])
    held_out = {name: corpus.held_out[: extent.max_texts] for name, corpus in sorted(sources.items())}
    ours, theirs = (held_out_bits(each, held_out, device) for each in (model, against))
    with LLM(model, device="cuda" if device.type == "cuda" else "cpu") as llm:
        stories = llm.generate(
            [BEGINNING] * extent.num_stories,
            [
                SamplingParams(temperature=0.8, max_tokens=extent.max_tokens, seed=seed)
                for seed in range(extent.num_stories)
            ],
        )
        greedy = SamplingParams(temperature=0.0, max_tokens=extent.max_tokens)
        answers = llm.chat([[{"role": "user", "content": question}] for question in QUESTIONS], greedy)
        leads = {name: _margins(llm, model, chosen, device) for name, chosen in held_out.items()}
    return Findings(
        course=course,
        corpora=list_corpora(texts),
        model_bytes=(model / "model.safetensors").stat().st_size,
        against=called or ("the embedded model of the package" if against == embedded_model() else against.name),
        bits={name: (ours[name], theirs[name]) for name in ours},
        samples=[BEGINNING + output.text for output in stories[:NUM_SAMPLES]],
        num_stories=extent.num_stories,
        max_tokens=extent.max_tokens,
        num_ended=sum(output.outputs[0].finish_reason == "stop" for output in stories),
        answers=[(question, output.text) for question, output in zip(QUESTIONS, answers, strict=True)],
        margins=leads,
        picture=PICTURE,
    )


def held_out_bits(model: Path, held_out: Mapping[str, Sequence[str]], device: torch.device) -> dict[str, float]:
    """Measure a checkpoint on held-out texts in float32, source by source, in bits per byte."""
    params = load_checkpoint(model, dtype=torch.float32, device=device).params
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))  # long texts are parted later: nothing to warn of
    return {
        name: bits_per_byte(params, lambda text: tokenizer.encode(text).ids, chosen)
        for name, chosen in held_out.items()
    }


def _margins(llm: LLM, model: Path, texts: Sequence[str], device: torch.device) -> Margins:
    whole = [llm.tokenizer.encode(text.removesuffix(END_OF_TEXT)) for text in texts[:NUM_MARGIN_PROMPTS]]
    prompts = [ids[: max(1, min(MAX_PROMPT_TOKENS, len(ids) // 2))] for ids in whole]
    outputs = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=NUM_MARGIN_TOKENS))
    params = load_checkpoint(model, dtype=torch.float32, device=device).params
    found = torch.cat(
        [
            margins(params, [*prompt, *output.outputs[0].token_ids], len(prompt))
            for prompt, output in zip(prompts, outputs, strict=True)
        ]
    )
    p1, p5, p50 = found.quantile(torch.tensor([0.01, 0.05, 0.5])).tolist()
    return p1, p5, p50


def draw_losses(course: Mapping[str, Any], path: Path) -> None:
    """Draw the loss of each update and the held-out bits per byte.

    Raises:
        ConfigError: matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  an extra
    except ImportError as error:
        raise ConfigError("the picture needs matplotlib: python -m pip install matplotlib") from error
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(range(1, len(course["losses"]) + 1), course["losses"], linewidth=0.8)
    left.set(xlabel="update", ylabel="loss in nats per token", title="Training")
    for name in (name for name in course["held_out"][0] if name != "step"):
        looks = course["held_out"]
        right.plot([look["step"] for look in looks], [look[name] for look in looks], marker=".", label=name)
    right.set(xlabel="update", ylabel="bits per byte", title="Held-out text", yscale="log")
    right.legend()
    figure.savefig(path, dpi=150)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, draw and write."""
    parser = argparse.ArgumentParser(description="Measure a trained embedded model and write its card.")
    parser.add_argument("folder", type=Path, help="what `python -m nanofn.embedded.train` wrote")
    parser.add_argument("--texts", type=Path, required=True, help="what it was trained on")
    parser.add_argument("--against", type=Path, default=embedded_model(), help="the checkpoint to compare with")
    parser.add_argument("--called", default="", metavar="NAME", help="what the card calls that checkpoint")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--stories", type=int, default=Extent().num_stories)
    parser.add_argument("--max-tokens", type=int, default=Extent().max_tokens, help="of a story or an answer")
    parser.add_argument("--max-texts", type=int, default=Extent().max_texts, help="most held-out texts of a source")
    parser.add_argument("--no-picture", action="store_true", help="where there is no matplotlib: draw later")
    given = parser.parse_args(arguments)
    card = given.folder / "card"
    card.mkdir(exist_ok=True)
    if not given.no_picture:
        draw_losses(json.loads((given.folder / "training.json").read_text(encoding="utf-8")), card / PICTURE)
    extent = Extent(num_stories=given.stories, max_tokens=given.max_tokens, max_texts=given.max_texts)
    found = find_out(given.folder, given.texts, given.against, torch.device(given.device), extent, given.called)
    (card / "model_card.md").write_text(write_card(found), encoding="utf-8")
    print(
        f"{card / 'model_card.md'}: {found.num_ended} of {found.num_stories} stories ended; bits per byte {found.bits}"
    )


if __name__ == "__main__":
    main()
