"""The model that comes along: a checkpoint like any other, and a recipe that makes it again."""

import json
from importlib.resources import files
from itertools import islice
from pathlib import Path

import attrs
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from model.checkpoints import expected_logits
from model.paging import Entry, relative_error, run_to_end, start_paging
from nanofn.device.checkpoint import load_checkpoint
from nanofn.embedded.dense import dense_logits, initial_params, trainable
from nanofn.embedded.markup import END_OF_TEXT, END_OF_TURN, SPECIAL_TOKENS
from nanofn.embedded.save import save_folder, write_safetensors
from nanofn.embedded.stand_in.conversations import documents
from nanofn.embedded.stand_in.train import CONFIG, Recipe, make_tokenizer, rows, train
from nanofn.text.tokenizer import load_tokenizer

FOLDER = Path(str(files("nanofn.embedded") / "model"))
MAX_BYTES = 7 << 20


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
    """Five files that any library for Qwen3 checkpoints knows, and few bytes."""
    names = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in FOLDER.iterdir()} == names
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= MAX_BYTES


def test_the_recipe_is_for_this_folder(checkpoint):
    """Sizes in the folder are those of the recipe."""
    assert checkpoint.config.vocab_size == CONFIG.vocab_size
    assert checkpoint.config.hidden_size == CONFIG.hidden_size
    assert checkpoint.config.num_layers == CONFIG.num_layers
    assert sum(tensor.numel() for tensor in trainable(checkpoint.params).values()) == 1_673_152


def test_logits_are_those_of_transformers(checkpoint, reference, tokenizer):
    """A trained model notices what a random one forgives: real text, in one piece, in chunks, token by token."""
    sequences = [tokenizer.encode(text) for text in islice(documents(99), 4)]
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
    sequence = tokenizer.encode(next(documents(5)))
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
    known = {word for document in islice(documents(1), 3000) for word in document.replace(END_OF_TEXT, "").split()}
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


def test_the_tokenizer_is_the_recipes(tokenizer):
    """The same seed gives the same vocabulary, and it splits text as the committed one does."""
    made = make_tokenizer(Recipe(), CONFIG.vocab_size)
    assert json.loads(made.to_str()) == json.loads((FOLDER / "tokenizer.json").read_text(encoding="utf-8"))
    text = next(documents(3))
    assert tokenizer.encode(text) == made.encode(text).ids


def test_texts_depend_on_the_seed_alone():
    """The same seed writes the same texts; they end with a token, and hardly any comes twice."""
    texts = list(islice(documents(4), 500))
    assert texts == list(islice(documents(4), 500))
    assert texts != list(islice(documents(5), 500))
    assert all(text.rstrip("\n").endswith((END_OF_TEXT, END_OF_TURN)) for text in texts)
    assert len({text for text in texts if text.endswith(END_OF_TEXT)}) > 200


def test_training_learns_and_repeats_itself(tokenizer, tmp_path):
    """A few updates of a small model lower the loss, give the same weights twice, and save a folder that loads."""
    small = Recipe(num_steps=12, num_warmup_steps=2, rows_per_step=2, row_length=32, num_vocab_documents=200)
    vocabulary = make_tokenizer(small, 300)
    config = attrs.evolve(CONFIG, vocab_size=300, num_layers=1, hidden_size=32, intermediate_size=32)
    num_threads = torch.get_num_threads()
    try:
        first, second = (train(small, config, vocabulary) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(num_threads)
    assert all(torch.equal(a, b) for a, b in zip(trainable(first).values(), trainable(second).values(), strict=True))
    batch = torch.stack(list(islice(rows(small, vocabulary), 8)))
    untrained = initial_params(config, torch.Generator().manual_seed(small.seed))

    def loss(params):
        return torch.nn.functional.cross_entropy(
            dense_logits(params, batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()
        )

    assert loss(first) < loss(untrained) - 0.1
    vocabulary.save(str(tmp_path / "tokenizer.json"))
    save_folder(tmp_path, first, {token: vocabulary.token_to_id(token) for token in SPECIAL_TOKENS})
    loaded = load_checkpoint(tmp_path).params
    for name, tensor in trainable(loaded).items():
        assert torch.equal(tensor, trainable(first)[name].to(torch.bfloat16))


def test_what_is_written_is_safetensors(tmp_path):
    """The library reads what the recipe's own writer wrote, in every dtype and with an empty shape."""
    tensors = {"b": torch.randn(3, 5), "a": torch.randn(2, 2).to(torch.bfloat16), "c": torch.zeros(0, 4).half()}
    write_safetensors(tmp_path / "x.safetensors", tensors)
    loaded = load_file(tmp_path / "x.safetensors")
    assert loaded.keys() == tensors.keys()
    assert all(
        torch.equal(loaded[name], tensor) and loaded[name].dtype == tensor.dtype for name, tensor in tensors.items()
    )
