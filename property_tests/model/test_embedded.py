"""The model that comes along: a checkpoint like any other, with the sizes and the vocabulary of its recipe."""

import json
import re
from importlib.resources import files
from itertools import islice
from pathlib import Path

import attrs
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from embedded.texts import read_texts
from model.checkpoints import expected_logits
from model.paging import Entry, relative_error, run_to_end, start_paging
from nanofn.device.checkpoint import load_checkpoint
from nanofn.embedded.conversations import generated
from nanofn.embedded.dense import dense_logits
from nanofn.embedded.markup import END_OF_TEXT, END_OF_TURN, SPECIAL_TOKENS
from nanofn.embedded.mixture import all_sources
from nanofn.embedded.packages import CHATS, DICTIONARY, NOVELS
from nanofn.embedded.save import write_safetensors
from nanofn.embedded.train import CONFIG, Recipe, make_tokenizer
from nanofn.embedded.vocabulary import train_tokenizer
from nanofn.text.tokenizer import load_tokenizer

FOLDER = Path(str(files("nanofn.embedded") / "model"))
MAX_BYTES = 16 << 20


@pytest.fixture(scope="module")
def checkpoint():
    """The embedded model as the engine loads it on a CPU."""
    return load_checkpoint(FOLDER, dtype=torch.float32)


@pytest.fixture(scope="module")
def reference():
    """The embedded model as transformers loads it."""
    return AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokenizer():
    """Its tokenizer."""
    return load_tokenizer(FOLDER)


def test_the_folder_is_small_and_complete():
    """Five files that any library for Qwen3 checkpoints knows, the notices of the texts, and few bytes."""
    names = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in FOLDER.iterdir()} == names | {"NOTICES.txt"}
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= MAX_BYTES


def test_every_text_has_its_notice():
    """Each package that the weights were made from is named with the copyright that its licence wants to be kept."""
    notices = (FOLDER / "NOTICES.txt").read_text(encoding="utf-8")
    for package in (CHATS, DICTIONARY, NOVELS):
        (year, holder), *_ = re.findall(r"copyright ([\d-]+) (.+)", package.licence)
        assert f"{package.name.partition(' ')[0]} {package.version}" in notices
        assert re.search(rf"Copyright (\(c\) )?{year} (by )?{holder}", notices)
    assert notices.count("permission notice shall be") == 2
    assert "Permission to use, copy, modify and distribute this software and\ndatabase" in notices


def test_the_recipe_is_for_this_folder(checkpoint):
    """Every size in the folder is the recipe's; what a file adds to it is its dtype and its end token."""
    assert attrs.evolve(checkpoint.config, dtype=None, eos_token_ids=()) == CONFIG


def test_logits_are_those_of_transformers(checkpoint, reference, tokenizer):
    """A trained model notices what a random one forgives: real text, in one piece, in chunks, token by token."""
    sequences = [tokenizer.encode(text) for text in islice(generated(99), 4)]
    steps = [[Entry(row, len(sequence)) for row, sequence in enumerate(sequences)]]
    single = [
        [Entry(row, 1) for row, sequence in enumerate(sequences) if len(sequence) > place]
        for place in range(max(map(len, sequences)))
    ]
    for schedule in (steps, single):
        for sequence, found in zip(
            sequences, run_to_end(start_paging(checkpoint.params, sequences, 16), schedule), strict=True
        ):
            assert relative_error(found, expected_logits(reference, sequence)) < 1e-5


def test_training_and_serving_compute_the_same(checkpoint, tokenizer):
    """The decoder that is trained and the one that serves give the same logits."""
    sequence = tokenizer.encode(next(generated(5)))
    (served,) = run_to_end(start_paging(checkpoint.params, [sequence], 16), [[Entry(0, len(sequence))]])
    with torch.inference_mode():
        trained = dense_logits(checkpoint.params, torch.tensor([sequence]))[0]
    assert relative_error(served, trained) < 1e-5


@pytest.mark.parametrize("prompt", ["Once upon a time", "The cat"])
def test_a_story_goes_on_and_ends_by_itself(prompt, reference, tokenizer):
    """The likeliest continuation is several sentences of known words, ended by an EOS token well before the limit."""
    ids = torch.tensor([tokenizer.encode(prompt)])
    with torch.inference_mode():
        out = reference.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=256)
    new = out[0, ids.shape[1] :].tolist()
    text = prompt + tokenizer.decode(new)
    known = {word for text in islice(generated(1), 3000) for word in text.replace(END_OF_TEXT, "").split()}
    assert 40 <= len(new) < 256
    assert new[-1] in load_checkpoint(FOLDER).eos_token_ids
    assert set(text.split()) <= known
    assert text.count(".") >= 5


def test_a_turn_ends_with_its_token(reference):
    """A greeting through the chat template is answered with one short turn."""
    theirs = AutoTokenizer.from_pretrained(FOLDER)
    chat = theirs.apply_chat_template(
        [{"role": "user", "content": "Hello!"}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.inference_mode():
        out = reference.generate(**chat, do_sample=False, max_new_tokens=64)
    answer = out[0, chat["input_ids"].shape[1] :].tolist()
    assert len(answer) < 32
    assert answer[-1] == theirs.eos_token_id == theirs.convert_tokens_to_ids(END_OF_TURN)


def test_the_eos_set_has_both_end_tokens(checkpoint, tokenizer):
    """The end of a turn and the end of a text both end the output."""
    ends = {tokenizer.encode(token)[0] for token in (END_OF_TURN, END_OF_TEXT)}
    assert set(checkpoint.eos_token_ids) == ends
    assert tokenizer.eos_token_id in ends


def test_the_vocabulary_parts_text_as_the_recipe_does(tokenizer):
    """Special tokens come first; words are parted, bytes decoded and text normalised as in a vocabulary made now."""
    made = json.loads(train_tokenizer([], 300).to_str())
    committed = json.loads((FOLDER / "tokenizer.json").read_text(encoding="utf-8"))
    assert [tokenizer.encode(token) for token in SPECIAL_TOKENS] == [[0], [1], [2]]
    for part in ("normalizer", "pre_tokenizer", "decoder", "added_tokens"):
        assert committed[part] == made[part]
    assert len(committed["model"]["vocab"]) == CONFIG.vocab_size


@pytest.mark.slow
def test_the_vocabulary_is_the_recipes():
    """The same texts give the same vocabulary, to the byte."""
    recipe = Recipe()
    sources = all_sources(read_texts(), recipe.seed, recipe.num_generated)
    made = make_tokenizer(recipe, sources, CONFIG.vocab_size)
    assert json.loads(made.to_str()) == json.loads((FOLDER / "tokenizer.json").read_text(encoding="utf-8"))


def test_what_is_written_is_safetensors(tmp_path):
    """The library reads what the recipe's own writer wrote, in every dtype and with an empty shape."""
    tensors = {"b": torch.randn(3, 5), "a": torch.randn(2, 2).to(torch.bfloat16), "c": torch.zeros(0, 4).half()}
    write_safetensors(tmp_path / "x.safetensors", tensors)
    loaded = load_file(tmp_path / "x.safetensors")
    assert loaded.keys() == tensors.keys()
    assert all(
        torch.equal(loaded[name], tensor) and loaded[name].dtype == tensor.dtype for name, tensor in tensors.items()
    )
