"""Random checkpoints are whole, load, and give what a benchmark can sample from."""

from random import Random

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from model.checkpoints import expected_logits
from model_dimensions import PUBLISHED
from nanofn import LLM, SamplingParams
from nanofn.device.checkpoint import load_checkpoint
from nanofn.device.random_source import LOGIT_STD
from nanofn.text.tokenizer import load_tokenizer
from random_checkpoint import make_checkpoint
from random_tokenizer import SPECIAL, random_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny one."""
    return make_checkpoint("tiny", tmp_path_factory.mktemp("random") / "tiny")


def token_ids(count):
    """Random ids of the tiny vocabulary."""
    random = Random(0)
    return [random.randrange(2_048) for _ in range(count)]


def test_it_loads_and_its_logits_spread(folder):
    """nanofn accounts for every tensor; logits are finite, with about the wanted standard deviation at every position."""
    assert load_checkpoint(folder).casts == ()
    logits = expected_logits(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), token_ids(64))
    assert bool(torch.isfinite(logits).all())
    assert (logits.std(dim=1) / LOGIT_STD - 1).abs().max() < 0.25


def lead_of_latest(model, ids):
    """How far the latest id's logit is above the others', in standard deviations, on average."""
    logits = expected_logits(model, ids)
    latest = logits.gather(1, torch.tensor(ids)[:, None])[:, 0]
    return float(((latest - logits.mean(dim=1)) / logits.std(dim=1)).mean())


def test_a_tied_head_does_not_lean_to_the_latest_token(folder):
    """The signs of the final norm take away what a tied head finds of the latest token in the residual stream."""
    model, ids = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), token_ids(256)
    assert abs(lead_of_latest(model, ids)) < 0.3
    with torch.no_grad():
        model.model.norm.weight.abs_()
    assert lead_of_latest(model, ids) > 1


def test_nanofn_generates_text_of_every_token(folder):
    """Each sampled id has a text, so that detokenization has its work."""
    with LLM(folder, device="cpu", max_model_len=64, max_num_seqs=2) as llm:
        params = SamplingParams(temperature=1.0, max_tokens=24, ignore_eos=True, seed=1)
        (output,) = llm.generate([token_ids(9)], params, use_tqdm=False)
        pieces = [llm.tokenizer.decode([each]) for each in output.outputs[0].token_ids]
    assert len(set(output.outputs[0].token_ids)) > 12
    assert all(pieces)


def test_shards_hold_the_same(folder, tmp_path):
    """Cut into shards with an index, the weights are the same, and load."""
    sharded = make_checkpoint("tiny", tmp_path / "sharded", max_shard_bytes=100_000)
    files = sorted(sharded.glob("*.safetensors"))
    assert len(files) > 2
    found = {name: tensor for file in files for name, tensor in load_file(file).items()}
    whole = load_file(folder / "model.safetensors")
    assert found.keys() == whole.keys()
    assert all(torch.equal(found[name], whole[name]) for name in whole)
    load_checkpoint(sharded)


def test_a_mixture_of_experts_is_whole_too(tmp_path):
    """transformers finds every tensor of a checkpoint with experts, none missing and none over."""
    folder = make_checkpoint("tiny-mixture", tmp_path / "mixture")
    model, told = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert {name: list(found) for name, found in told.items() if found} == {}
    assert bool(torch.isfinite(expected_logits(model, token_ids(16))).all())


def test_what_is_there_is_left_alone(folder):
    """A whole checkpoint of the same name is not written again, one of another name is refused."""
    written = (folder / "model.safetensors").stat().st_mtime_ns
    make_checkpoint("tiny", folder)
    assert written == (folder / "model.safetensors").stat().st_mtime_ns
    with pytest.raises(ValueError, match="another checkpoint"):
        make_checkpoint("qwen3-0.6b", folder)


def test_a_folder_may_have_no_weights_yet(folder, tmp_path):
    """Config and tokenizer are the same; asked for later, the weights are added, and they are the same too."""
    bare = make_checkpoint("tiny", tmp_path / "bare", with_weights=False)
    kept = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".safetensors"}
    assert {path.name: path.read_bytes() for path in bare.iterdir()} == kept
    make_checkpoint("tiny", bare)
    assert (bare / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def test_a_tokenizer_may_be_given(folder, tmp_path, monkeypatch):
    """A given tokenizer is copied with its end token; one with more ids than the model is refused."""
    copy = make_checkpoint("tiny", tmp_path / "copy", tokenizer=folder)
    assert (copy / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    assert load_checkpoint(copy).eos_token_ids == (2_047,)
    monkeypatch.setitem(PUBLISHED, "tinier", PUBLISHED["tiny"] | {"vocab_size": 1_000})
    with pytest.raises(ValueError, match=r"2048 ids, the model 1000"):
        make_checkpoint("tinier", tmp_path / "tinier", tokenizer=folder)


@pytest.mark.parametrize("vocab_size", [259, 260, 1_000])
def test_a_random_tokenizer_has_every_id(vocab_size):
    """There are exactly so many ids; the last ones are special, every other one is a byte or a word."""
    tokenizer = random_tokenizer(vocab_size)
    assert tokenizer.get_vocab_size() == vocab_size
    assert [tokenizer.token_to_id(name) for name in SPECIAL] == list(range(vocab_size - 3, vocab_size))
    assert all(tokenizer.decode([token_id]) for token_id in range(vocab_size - 3))


def test_a_random_tokenizer_merges(folder):
    """A text survives encoding and decoding, and words of the vocabulary take fewer tokens than bytes."""
    tokenizer = load_tokenizer(folder)
    text = "".join(tokenizer.decode([token_id]) for token_id in range(1_000, 1_050)) + " größer, 42\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(text)) < 0.7 * len(text.encode())


def test_a_random_tokenizer_has_room_for_bytes():
    """Fewer ids than bytes and special tokens are refused."""
    with pytest.raises(ValueError, match="vocab_size is 258"):
        random_tokenizer(258)
