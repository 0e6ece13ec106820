"""Training at a tiny size: it learns, repeats itself, keeps what did best, and its card says what was measured."""

import json
import math
import re
from itertools import pairwise

import attrs
import pytest
import torch

from nanofn.device.checkpoint import load_checkpoint
from nanofn.embedded import report
from nanofn.embedded.corpora import Corpus, write_corpora
from nanofn.embedded.dense import dense_logits, initial_params, on_device, trainable
from nanofn.embedded.markup import END_OF_TEXT, write_turns
from nanofn.embedded.measure import WINDOW, bits_per_byte, margins, num_bytes
from nanofn.embedded.mixture import GENERATED, NUM_HELD_OUT_GENERATED, all_sources, draw_rows, make_stream
from nanofn.embedded.packages import CHATS, NOVELS
from nanofn.embedded.train import CONFIG, SHARES, Recipe, make_tokenizer, rate_of, save, train
from nanofn.errors import ConfigError

CPU = torch.device("cpu")
SMALL = attrs.evolve(
    CONFIG, vocab_size=400, hidden_size=64, intermediate_size=96, num_layers=2, num_heads=2, num_kv_heads=1
)
RECIPE = Recipe(
    num_generated=200,
    num_steps=20,
    rows_per_step=4,
    row_length=128,
    num_warmup_steps=3,
    measure_every=10,
    peak_rate=8e-3,
)
CORPORA = (
    Corpus(
        "novels",
        tuple(f"The sea was calm on day {day}.{END_OF_TEXT}" for day in range(60)),
        (f"The sea.{END_OF_TEXT}",),
    ),
    Corpus("chats", (write_turns([("user", "Hi"), ("assistant", "Hello!")]) + END_OF_TEXT,) * 20, ("Hello!",)),
)


@pytest.fixture(scope="module")
def sources():
    """Two small corpora and the generator's texts."""
    found = all_sources(CORPORA, RECIPE.seed, RECIPE.num_generated)
    few = attrs.evolve(found[GENERATED], held_out=found[GENERATED].held_out[:8])
    return found | {GENERATED: few}


@pytest.fixture(scope="module")
def tokenizer(sources):
    """A vocabulary of the texts."""
    return make_tokenizer(RECIPE, sources, SMALL.vocab_size)


@pytest.fixture(scope="module")
def trained(sources, tokenizer):
    """Twenty updates."""
    return train(RECIPE, SMALL, tokenizer, sources, CPU)


@pytest.fixture(scope="module")
def folder(trained, tokenizer, tmp_path_factory):
    """What the training leaves behind, with the texts beside it."""
    made = tmp_path_factory.mktemp("trained")
    write_corpora(made, zip(CORPORA, (NOVELS, CHATS), strict=True))
    facts = {"device": "CPU", "torch": torch.__version__, "seconds": 1.0, "num_parameters": 123_456}
    save(made, RECIPE, trained, tokenizer, facts)
    return made


def test_the_recipe_fits_into_sixteen_mebibytes():
    """Sizes are those that the issue of a small model allows, and every source has its share."""
    params = initial_params(CONFIG, torch.Generator())
    assert 2 * sum(weight.numel() for weight in trainable(params).values()) == 2 * 7_344_896 <= 16 << 20
    assert sum(SHARES.values()) == pytest.approx(1.0)


def test_the_loss_falls(trained):
    """Twenty updates bring the loss from the logarithm of the vocabulary far down, and held-out text with it."""
    assert trained.losses[0] == pytest.approx(math.log(SMALL.vocab_size), abs=0.5)
    assert sum(trained.losses[-3:]) / 3 < trained.losses[0] - 1.5
    first, last = trained.held_out
    assert (first["step"], last["step"]) == (10, 20)
    assert all(last[name] < first[name] for name in (GENERATED, "novels"))


def test_training_repeats_itself_to_the_bit(trained, sources, tokenizer):
    """The same seed gives the same losses and the same weights on a CPU; global switches are as before."""
    again = train(RECIPE, SMALL, tokenizer, sources, CPU)
    assert again.losses == trained.losses
    pairs = zip(trainable(again.params).values(), trainable(trained.params).values(), strict=True)
    assert all(torch.equal(first, second) for first, second in pairs)
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_weights_that_did_best_are_kept(sources, tokenizer):
    """At a rate that ruins them, the weights of the first look are what comes out."""
    wild = attrs.evolve(RECIPE, peak_rate=1.0, num_steps=4, measure_every=1, num_warmup_steps=1000)
    ruined = attrs.evolve(wild, num_warmup_steps=1)
    kept = train(ruined, SMALL, tokenizer, sources, CPU)
    means = [sum(value for name, value in look.items() if name != "step") / 3 for look in kept.held_out]
    measured = [
        bits_per_byte(kept.params, lambda text: tokenizer.encode(text).ids, corpus.held_out)
        for corpus in sources.values()
    ]
    assert sum(measured) / 3 == pytest.approx(min(means), rel=1e-5)
    assert min(means) < means[-1]


def test_bfloat16_training_learns_too(sources, tokenizer):
    """Under autocast, as on a GPU, the loss has a gradient for every weight and is close to that of float32."""
    params = initial_params(SMALL, torch.Generator().manual_seed(1))
    rows = draw_rows({"x": make_stream(tokenizer, sources[GENERATED].train, 1)}, {"x": 1.0}, 4, 64, torch.Generator())

    def loss(dtype):
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            logits = dense_logits(params, rows[:, :-1], dropout=0.1 if dtype == torch.bfloat16 else 0.0)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())

    low = loss(torch.bfloat16)
    low.backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in trainable(params).values())
    assert low.item() == pytest.approx(loss(torch.float32).item(), abs=0.1)


def test_weights_copied_to_a_device_are_leaves_of_their_own():
    """Copies are equal, gather gradients, share nothing with the originals, and the head stays the embedding."""
    params = initial_params(SMALL, torch.Generator().manual_seed(1))
    copied = on_device(params, CPU)
    assert copied.head is copied.embedding
    for first, second in zip(trainable(params).values(), trainable(copied).values(), strict=True):
        assert torch.equal(first, second)
        assert second.is_leaf
        assert second.requires_grad
        assert first.data_ptr() != second.data_ptr()


def test_rows_begin_with_a_document(sources, tokenizer):
    """Each row starts where a document starts and goes on with its successors, a short stream from its beginning."""
    stream = make_stream(tokenizer, sources["novels"].train, 1)
    rows = draw_rows({"x": stream}, {"x": 1.0}, 20, 2000, torch.Generator().manual_seed(1))
    assert rows.shape == (20, 2001)
    whole = tokenizer.decode(stream.token_ids.tolist(), skip_special_tokens=False)
    assert sorted(whole.split(END_OF_TEXT)[:-1]) == sorted(
        text[: -len(END_OF_TEXT)] for text in sources["novels"].train
    )
    for row in rows:
        text = tokenizer.decode(row.tolist(), skip_special_tokens=False)
        assert text.startswith("The sea was calm on day ")
        assert text.count(END_OF_TEXT) > 60


def test_shares_are_kept(sources, tokenizer):
    """A source with three quarters of the shares gives three quarters of the rows."""
    streams = {name: make_stream(tokenizer, sources[name].train, 1) for name in ("novels", "chats")}
    generator = torch.Generator().manual_seed(1)
    rows = draw_rows(streams, {"novels": 3.0, "chats": 1.0}, 2000, 1, generator)
    (turn,) = tokenizer.encode("<|im_start|>").ids
    assert (rows[:, 0] == turn).float().mean().item() == pytest.approx(0.25, abs=0.04)


def test_no_held_out_text_was_generated_for_training():
    """Short conversations would come twice by chance."""
    found = all_sources((), 11, 3000)[GENERATED]
    assert len(found.held_out) == NUM_HELD_OUT_GENERATED
    assert not set(found.train) & set(found.held_out)


def test_the_rate_rises_and_falls():
    """It reaches its peak after the warm-up and ends near 0."""
    share = rate_of(Recipe(num_steps=100, num_warmup_steps=10))
    shares = [share(step) for step in range(100)]
    assert shares[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert all(first >= second for first, second in pairwise(shares[10:]))
    assert shares[10] == pytest.approx(1.0)
    assert shares[-1] < 1e-3


def test_bits_per_byte_are_those_of_a_uniform_model(tokenizer):
    """A model without an opinion pays log2 of the vocabulary for each token, over windows and paddings."""
    params = initial_params(SMALL, torch.Generator())
    flat = attrs.evolve(params, head=torch.zeros_like(params.head))
    texts = [f"é short one{END_OF_TEXT}", "a longer text. " * (WINDOW // 3)]
    encoded = [tokenizer.encode(text.removesuffix(END_OF_TEXT)).ids for text in texts]
    assert max(map(len, encoded)) > WINDOW
    expected = sum(map(len, encoded)) * math.log2(SMALL.vocab_size) / sum(map(num_bytes, texts))
    assert bits_per_byte(flat, lambda text: tokenizer.encode(text).ids, texts) == pytest.approx(expected, rel=1e-5)


def test_bits_per_byte_are_the_mean_of_single_texts(trained, tokenizer):
    """Neighbours in a batch change nothing: the cost of all is the sum of the costs of each."""
    texts = ["The sea.", "Once upon a time there was a cat.", "x"]

    def cost(chosen):
        return bits_per_byte(trained.params, lambda text: tokenizer.encode(text).ids, chosen) * sum(
            map(num_bytes, chosen)
        )

    assert cost(texts) == pytest.approx(sum(cost([text]) for text in texts), rel=1e-5)


def test_margins_are_the_lead_of_the_best(trained):
    """One number for each output token, none negative, from the logits before it."""
    ids = [3, 50, 60, 70, 80]
    with torch.inference_mode():
        logits = dense_logits(trained.params, torch.tensor([ids]))[0]
    ordered = logits.sort(dim=-1, descending=True).values
    assert torch.equal(margins(trained.params, ids, 2), (ordered[:, 0] - ordered[:, 1])[1:4])


def test_the_folder_has_a_checkpoint_and_the_course(folder, trained):
    """The engine loads the model; the course has every loss and the recipe."""
    loaded = load_checkpoint(folder / "model").params
    for name, weight in trainable(loaded).items():
        assert torch.equal(weight, trainable(trained.params)[name].to(torch.bfloat16))
    course = json.loads((folder / "training.json").read_text())
    assert course["losses"] == trained.losses
    assert course["recipe"]["seed"] == RECIPE.seed
    assert course["recipe"]["shares"] == SHARES


def test_the_card_says_what_was_measured(folder, capfd):
    """Data with licences, the seed, held-out figures per source, ten samples, five turns, the share that ends, margins."""
    options = ["--stories", "12", "--max-tokens", "40", "--max-texts", "3", "--no-picture", "--device", "cpu"]
    report.main([str(folder), "--texts", str(folder), *options])
    card = (folder / "card" / "model_card.md").read_text()
    assert CHATS.licence in card
    assert NOVELS.licence in card
    assert "123,456 parameters" in card
    assert "| this model | the embedded model of the package |" in card
    assert f"Seed {RECIPE.seed}, 20 updates of 4 rows of 128 tokens" in card
    for name in (GENERATED, "chats", "novels"):
        assert re.search(rf"\| {name} \| \d+\.\d+ \| \d+\.\d+ \| [+-]\d+% \|", card)
        assert re.search(rf"\| {name} \| \d+\.\d+ \| \d+\.\d+ \| \d+\.\d+ \|", card)
    assert len(re.findall(r"^\d+\. Once upon a time", card, re.MULTILINE)) == 10
    assert len(re.findall(r"^- \*\*", card, re.MULTILINE)) == len(report.QUESTIONS) == 5
    ended = re.search(r"Of 12 such stories, (\d+) end by themselves within 40 tokens", card)
    assert 0 <= int(ended[1]) <= 12
    assert "model_card.md" in capfd.readouterr().out


def test_the_card_is_the_same_twice(folder):
    """Samples have seeds and nothing else is left to chance."""
    found = [
        report.find_out(folder, folder, folder / "model", CPU, report.Extent(num_stories=2, max_tokens=16, max_texts=2))
        for _ in range(2)
    ]
    assert found[0] == found[1]
    assert all(ours == theirs for ours, theirs in found[0].bits.values())


def test_the_picture_needs_matplotlib_and_says_so(folder, tmp_path):
    """Where the extra is installed there is a PNG, elsewhere an error that names the package."""
    course = json.loads((folder / "training.json").read_text())
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        with pytest.raises(ConfigError, match="pip install matplotlib"):
            report.draw_losses(course, tmp_path / "loss.png")
    else:
        report.draw_losses(course, tmp_path / "loss.png")
        assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
