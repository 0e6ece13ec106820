"""The tokenizer of a folder: what it loads, what it refuses, and that decoding never fails."""

import json

import pytest
from hypothesis import given, strategies as st
from tokenizers import AddedToken, Tokenizer as Backend, decoders, models
from transformers import PreTrainedTokenizerFast

from nanofn.errors import CheckpointError
from nanofn.text.tokenizer import Tokenizer, load_tokenizer
from text.tokenizers_for_tests import END, byte_fallback, byte_level

KINDS = {"byte level": byte_level(), "byte fallback": byte_fallback()}


@pytest.fixture
def folder(tmp_path):
    """A folder with the byte-level tokenizer."""
    KINDS["byte level"].inner.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", KINDS)
@given(ids=st.lists(st.integers(-5, 1 << 40)))
def test_decoding_never_fails(kind, ids):
    """Any integers decode to some text; those without a token add nothing."""
    tokenizer = KINDS[kind]
    known = [token_id for token_id in ids if 0 <= token_id < tokenizer.vocab_size]
    assert tokenizer.decode(ids) == tokenizer.decode(known)


@pytest.mark.parametrize("kind", KINDS)
def test_padded_vocabulary_ids_decode_to_nothing(kind):
    """A model may have more logit rows than the tokenizer has tokens."""
    tokenizer = KINDS[kind]
    assert tokenizer.decode([tokenizer.vocab_size, tokenizer.vocab_size + 31]) == ""


@given(text=st.text(max_size=50))
def test_byte_level_text_survives_a_round_trip(text):
    """Encoding and decoding give the text back, special tokens in it included."""
    assert KINDS["byte level"].decode(KINDS["byte level"].encode(text), skip_special_tokens=False) == text


def test_special_tokens_are_left_out_unless_asked_for():
    """A special token is text only with skip_special_tokens=False; an added plain token always is."""
    tokenizer = KINDS["byte level"]
    ids = tokenizer.encode(f"a<think>b{END}")
    assert tokenizer.decode(ids) == "a<think>b"
    assert tokenizer.decode(ids, skip_special_tokens=False) == f"a<think>b{END}"
    assert tokenizer.special_token_ids == {tokenizer.eos_token_id}


def test_only_fallback_vocabularies_have_byte_tokens():
    """The 256 byte tokens are found by name, and an unknown name is not mistaken for one."""
    assert len(KINDS["byte fallback"].byte_token_ids) == 256
    assert KINDS["byte level"].byte_token_ids == frozenset()


def test_a_saved_tokenizer_loads(folder):
    """A folder's tokenizer encodes as the one that was saved, and brings its EOS id."""
    loaded = load_tokenizer(folder)
    assert loaded.encode("a ab é") == KINDS["byte level"].encode("a ab é")
    assert loaded.eos_token_id == KINDS["byte level"].eos_token_id


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    """The error says what to put where."""
    with pytest.raises(CheckpointError, match=r"no tokenizer that can be read.*tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_a_damaged_tokenizer_is_refused(folder):
    """A cut tokenizer.json is an error of the checkpoint, not of a library."""
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text[: len(text) // 2])
    with pytest.raises(CheckpointError, match="no tokenizer that can be read"):
        load_tokenizer(folder)


def test_code_in_a_folder_does_not_run(folder):
    """A tokenizer class that comes with the checkpoint is refused, and its module is not even imported."""
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"tokenizer_class": "Planted", "auto_map": {"AutoTokenizer": [None, "planted.Planted"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": "planted", "auto_map": {"AutoConfig": "planted.C"}}))
    (folder / "planted.py").write_text("raise SystemExit('code from a checkpoint has run')\n")
    with pytest.raises(CheckpointError, match="trust_remote_code"):
        load_tokenizer(folder)


def test_what_stands_between_special_tokens_is_known():
    """Nothing, in tokenizers of models that write; a decoder of words puts blanks there."""
    assert [each.joins_special_tokens for each in KINDS.values()] == [True, True]
    backend = Backend(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens([AddedToken("[UNK]", special=True), AddedToken(END, special=True)])
    spaced = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END))
    assert spaced.decode([0, 2], skip_special_tokens=False) == f"[UNK] {END}"
    assert not spaced.joins_special_tokens
