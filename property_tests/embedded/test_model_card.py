"""The card in the documentation is that of the weights in the package, and of the recipe that made them."""

import re
from collections.abc import Iterator
from itertools import islice

import pytest
import torch

from embedded.texts import ROOT, read_texts
from nanofn import LLM, SamplingParams
from nanofn.device.checkpoint import load_checkpoint
from nanofn.embedded.conversations import generated
from nanofn.embedded.dense import trainable
from nanofn.embedded.markup import END_OF_TEXT
from nanofn.embedded.mixture import GENERATED, all_sources
from nanofn.embedded.packages import CHATS, DICTIONARY, NOVELS
from nanofn.embedded.report import BEGINNING, NUM_SAMPLES, PICTURE, QUESTIONS, Extent, held_out_bits
from nanofn.embedded.train import Recipe
from nanofn.llm.locate import embedded_model

CARD = (ROOT / "docs" / "model_card.md").read_text(encoding="utf-8")
CPU = torch.device("cpu")
MOST_BITS = 0.75
"""Held-out text is to cost at least a quarter less than with the stand-in that the package had before."""

SHARE_OF_ENDS = 0.9
NUM_STORIES = 20
ROUNDING = 2e-3
"""The card has three digits, from a GPU: TF32 is off there, and sums are taken in another order."""


def rows(heading: str) -> Iterator[list[str]]:
    """The cells of the table under a heading, its own two lines apart."""
    table = CARD.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("|")]
    for line in lines[2:]:
        yield [cell.strip() for cell in line.strip("|").split("|")]


def section(heading: str) -> str:
    """The text under the first heading that matches."""
    return re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", CARD, re.MULTILINE | re.DOTALL)[1]


def test_sizes_are_those_of_the_weights():
    """Parameters as many as the checkpoint has, and the file is as large as the card says."""
    params = load_checkpoint(embedded_model(), dtype=torch.float32).params
    size = (embedded_model() / "model.safetensors").stat().st_size
    (stated,) = re.findall(r"model of ([\d,]+) parameters \((\d+\.\d) MiB", CARD)
    assert stated == (f"{sum(weight.numel() for weight in trainable(params).values()):,}", f"{size / 2**20:.1f}")


def test_the_training_is_the_recipes():
    """Seed, updates, rows, rate and dropout are what `Recipe()` has, so that the commands make this model."""
    recipe = Recipe()
    stated = (
        f"Seed {recipe.seed}, {recipe.num_steps:,} updates of {recipe.rows_per_step} rows of {recipe.row_length:,} "
        f"tokens (98.3 million tokens), AdamW at a peak rate of {recipe.peak_rate:g}, dropout {recipe.dropout:g};"
    )
    assert stated in CARD
    assert recipe.num_steps * recipe.rows_per_step * recipe.row_length == pytest.approx(98.3e6, abs=5e4)
    assert f"| {recipe.num_generated:,} texts |" in CARD
    assert f"![Loss while training]({PICTURE})" in CARD
    assert (ROOT / "docs" / PICTURE).read_bytes().startswith(b"\x89PNG")


def test_every_text_is_there_with_its_licence():
    """The card lists the packages that the recipe is pinned to."""
    listed = {tuple(cells[1:3]) for cells in rows("Data")}
    assert {(f"{each.name} {each.version}", each.licence) for each in (CHATS, DICTIONARY, NOVELS)} <= listed


def test_held_out_text_costs_a_quarter_less_than_before():
    """In natural and in generated text, and the card's differences are those of its figures."""
    found = list(rows("Held-out text, in bits per byte"))
    assert {name for name, *_ in found} == {"chats", "dictionary", "novels", GENERATED}
    for _, ours, theirs, difference in found:
        assert float(ours) <= MOST_BITS * float(theirs)
        assert difference == f"{(float(ours) / float(theirs) - 1) * 100:+.0f}%"


def test_the_card_shows_ten_stories_and_five_turns():
    """All of them whole, and at least 90 of 100 ended by themselves."""
    stories, turns = section("10 samples"), section("5 turns")
    assert len(re.findall(rf"^\d+\. {BEGINNING}.*[.!?\"]$", stories, re.MULTILINE)) == NUM_SAMPLES
    assert [
        re.sub(r"\\(.)", r"\1", said) for said in re.findall(r"^- \*\*(.+?)\*\* .+[.!?\"]$", turns, re.MULTILINE)
    ] == [*QUESTIONS]
    ((total, ended, most),) = re.findall(r"Of (\d+) such stories, (\d+) end by themselves within (\d+) tokens", stories)
    assert (int(total), int(most)) == (Extent().num_stories, Extent().max_tokens)
    assert int(ended) >= SHARE_OF_ENDS * int(total)


def assert_stories_end(num_stories):
    """Sample stories as the card does and count those that end."""
    params = [SamplingParams(temperature=0.8, max_tokens=Extent().max_tokens, seed=seed) for seed in range(num_stories)]
    with LLM() as llm:
        outputs = llm.generate([BEGINNING] * num_stories, params)
    assert sum(output.outputs[0].finish_reason == "stop" for output in outputs) >= SHARE_OF_ENDS * num_stories
    assert all(output.outputs[0].stop_reason is None for output in outputs)
    words = {word for text in islice(generated(1), 3000) for word in re.findall(r"[a-z]+", text.lower())}
    told = [word for output in outputs for word in re.findall(r"[a-z]+", output.text.lower())]
    assert sum(word in words for word in told) >= 0.99 * len(told)


def test_stories_end_by_themselves():
    """Twenty stories at temperature 0.8: nine in ten end by an end token, and nearly all words are known ones."""
    assert_stories_end(NUM_STORIES)


@pytest.mark.slow
def test_a_hundred_stories_end_by_themselves():
    """The card's hundred."""
    assert_stories_end(Extent().num_stories)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("natural", [False, True])
def test_held_out_figures_are_those_of_the_weights(natural):
    """The bits per byte on the card, measured again: of generated text, and of natural text where it was fetched."""
    recipe = Recipe()
    sources = all_sources(read_texts() if natural else (), recipe.seed, recipe.num_generated)
    held_out = {
        name: corpus.held_out[: Extent().max_texts]
        for name, corpus in sources.items()
        if (name != GENERATED) == natural
    }
    stated = {name: float(ours) for name, ours, *_ in rows("Held-out text, in bits per byte")}
    found = held_out_bits(embedded_model(), held_out, CPU)
    assert all(text.endswith(END_OF_TEXT) for texts in held_out.values() for text in texts)
    assert found == {name: pytest.approx(stated[name], abs=ROUNDING) for name in held_out}
