"""GGUF files: the weights that were written, the logits of transformers, and refusals by name."""

import shutil
import struct
import sys

import pytest
import torch

gguf = pytest.importorskip("gguf", reason="GGUF files need the extra `gguf`")

from model.checkpoints import expected_logits
from model.gguf_files import make_gguf
from model.paging import Entry, relative_error, run_to_end, start_paging
from nanofn.device import gguf_source
from nanofn.device.checkpoint import load_checkpoint
from nanofn.device.gguf_header import read_gguf_header
from nanofn.device.gguf_names import config_json_of
from nanofn.errors import CheckpointError, ConfigError, UnsupportedModelError

Type = gguf.GGMLQuantizationType
ARCHITECTURES = ("llama", "qwen2", "qwen3", "qwen3 tied")
TYPES = (Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q5_0, Type.Q5_1, Type.Q4_0, Type.Q4_1)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A llama file in fp32."""
    return make_gguf("llama", tmp_path_factory.mktemp("gguf"), Type.F32).path


@pytest.mark.parametrize("kind", [Type.F32, Type.Q4_1], ids=lambda kind: kind.name)
@pytest.mark.parametrize("family", ARCHITECTURES)
def test_logits_are_those_of_transformers_with_the_dequantised_weights(family, kind, tmp_path):
    """Names, tied heads, biases and llama's interleaved heads: a whole prompt, then token by token."""
    fixture = make_gguf(family, tmp_path, kind)
    params = load_checkpoint(fixture.path, dtype=torch.float32).params
    sequence = [place * 7 % 211 for place in range(40)]
    for steps in ([[Entry(0, 40)]], [[Entry(0, 1)]] * 40):
        (found,) = run_to_end(start_paging(params, [sequence], 16), steps)
        assert relative_error(found, expected_logits(fixture.model, sequence)) < 1e-5


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_weights_are_dequantised_to_the_bit(kind, tmp_path, monkeypatch):
    """Every type that `gguf` can write, cut into pieces of a few rows and into whole tensors."""
    fixture = make_gguf("qwen3", tmp_path, kind)
    weights = fixture.model.state_dict()
    for numbers in (100, 1 << 20):
        monkeypatch.setattr(gguf_source, "PIECE_NUMBERS", numbers)
        checkpoint = load_checkpoint(fixture.path, dtype=torch.float32)
        assert torch.equal(checkpoint.params.embedding, weights["model.embed_tokens.weight"])
        assert torch.equal(checkpoint.params.head, weights["lm_head.weight"])
        for index, layer in enumerate(checkpoint.params.layers):
            assert torch.equal(layer.down_weight, weights[f"model.layers.{index}.mlp.down_proj.weight"])
    matrices = 2 + 7 * len(checkpoint.params.layers)
    assert checkpoint.casts == (() if kind == Type.F32 else ((kind.name, matrices),))


def test_without_a_dtype_weights_become_bfloat16(plain):
    """What models are published in; quantised types have no dtype of their own."""
    assert load_checkpoint(plain).params.embedding.dtype == torch.bfloat16


def test_a_folder_with_one_gguf_file_is_that_file(plain, tmp_path):
    """Two are one too many: the error names them."""
    shutil.copy(plain, tmp_path / "a.gguf")
    assert load_checkpoint(tmp_path).config == load_checkpoint(plain).config
    shutil.copy(plain, tmp_path / "b.gguf")
    with pytest.raises(CheckpointError, match=r"2 GGUF files \(a\.gguf, b\.gguf\)"):
        load_checkpoint(tmp_path)


def test_the_ending_is_known_in_capitals_and_a_folder_of_that_name_is_none(plain, tmp_path):
    """Names as they are found."""
    (tmp_path / "old.gguf").mkdir()
    path = shutil.copy(plain, tmp_path / "MODEL.GGUF")
    assert load_checkpoint(path).config == load_checkpoint(tmp_path).config == load_checkpoint(plain).config


def test_the_header_is_what_the_package_reads(plain):
    """Every key, name, shape, type and offset as `gguf`'s own reader has them."""
    ours, theirs = read_gguf_header(plain), gguf.GGUFReader(plain)
    expected = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert ours.metadata == expected
    assert [(t.name, t.shape[::-1], t.type_id, t.first_byte) for t in ours.tensors] == [
        (t.name, tuple(t.shape.tolist()), t.tensor_type.value, t.data_offset) for t in theirs.tensors
    ]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"general.architecture": "gemma3"}, "general.architecture 'gemma3'.*llama, qwen2, qwen3"),
        ({"general.architecture": None}, "general.architecture None"),
        ({"split.count": 3}, "one of 3 parts"),
        ({"llama.expert_count": 8}, "expert_count 8"),
        ({"llama.rope.scaling.type": "yarn"}, r"rope\.scaling\.type 'yarn'"),
        ({"llama.attention.sliding_window": 512}, "sliding_window 512"),
        ({"llama.rope.dimension_count": 8}, r"rope\.dimension_count 8"),
        ({"llama.attention.value_length": 8}, r"attention\.value_length 8"),
    ],
)
def test_what_is_not_covered_is_refused_by_name(plain, change, named):
    """A feature in use that would silently change the text."""
    header = read_gguf_header(plain)
    header.metadata.update(change)
    with pytest.raises(UnsupportedModelError, match=named):
        config_json_of(header, plain)


def patched(source, target, old, new):
    """Copy a file, some bytes changed."""
    data = source.read_bytes()
    assert data.count(old) == 1
    target.write_bytes(data.replace(old, new))
    return target


def test_stretched_frequencies_in_a_tensor_are_refused(plain, tmp_path):
    """Llama 3.1's files hold their scaling as a tensor."""
    path = patched(plain, tmp_path / "x.gguf", b"blk.2.ffn_up.weight", b"rope_freqs.weight\0\0")
    data = path.read_bytes().replace(struct.pack("<Q", 19) + b"rope_freqs", struct.pack("<Q", 17) + b"rope_freqs")
    path.write_bytes(data.replace(b"rope_freqs.weight\0\0", b"rope_freqs.weight"))
    with pytest.raises(UnsupportedModelError, match=r"rope_freqs\.weight.*llama3 scaling"):
        load_checkpoint(path)


def test_a_tensor_of_a_type_without_dequantisation_is_refused_by_name(plain, tmp_path):
    """Integers are no weights."""
    entry = b"output_norm.weight" + struct.pack("<IQ", 1, 64)
    path = patched(plain, tmp_path / "x.gguf", entry + struct.pack("<I", 0), entry + struct.pack("<I", Type.I32.value))
    with pytest.raises(UnsupportedModelError, match=r"model\.norm\.weight is stored as I32"):
        load_checkpoint(path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-1000], "is damaged: .* the file ends at"),
        (lambda data: data[:100], "no GGUF file, or damaged"),
        (lambda data: b"", "no GGUF file, or damaged"),
        (lambda data: b"PK" + data[2:], "begins with b'PKUF'"),
        (lambda data: data[:8] + struct.pack("<Q", 1 << 60) + data[16:], "no GGUF file, or damaged"),
        (lambda data: data[:16] + struct.pack("<Q", 1 << 60) + data[24:], "no GGUF file, or damaged"),
    ],
    ids=["cut data", "cut header", "empty", "another magic", "2^60 tensors", "2^60 keys"],
)
def test_a_damaged_file_is_refused(plain, tmp_path, damage, message):
    """Cut, of another kind, or with counts that no file holds: none allocates what a number in it says."""
    path = tmp_path / "x.gguf"
    path.write_bytes(damage(plain.read_bytes()))
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(path)


def entry_end(data, name):
    """Where a tensor's entry has its offset: behind name, axes and type."""
    place = data.index(name) + len(name)
    (num_axes,) = struct.unpack_from("<I", data, place)
    return place + 4 + 8 * num_axes + 4


def test_tensors_on_the_same_bytes_are_refused(plain, tmp_path):
    """Two of one shape, and the second says that it lies where the first does."""
    data = bytearray(plain.read_bytes())
    one, other = (entry_end(data, name) for name in (b"blk.0.ffn_up.weight", b"blk.1.ffn_up.weight"))
    data[other : other + 8] = data[one : one + 8]
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"is damaged: \S+up_proj\.weight begins at byte \d+, before \S+up_proj"):
        load_checkpoint(path)


def test_tensors_of_one_name_are_refused(plain, tmp_path):
    """The second would hide the first."""
    path = patched(plain, tmp_path / "x.gguf", b"blk.1.ffn_up.weight", b"blk.0.ffn_up.weight")
    with pytest.raises(CheckpointError, match=r"some of its \d+ tensors share a name"):
        load_checkpoint(path)


def test_a_list_longer_than_any_vocabulary_is_not_read(tmp_path):
    """Its count fits the file, which is sparse here and gigabytes elsewhere; each byte would become an object."""
    key = b"general.tags"
    start = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", len(key)) + key
    path = tmp_path / "x.gguf"
    with path.open("wb") as file:
        file.write(start + struct.pack("<IIQ", 9, 0, 50_000_000))
        file.truncate(60_000_000)
    with pytest.raises(CheckpointError, match=r"a list of 50000000 values at \d+, at most 4194304 are read"):
        load_checkpoint(path)


def test_a_file_of_another_version_is_refused(plain, tmp_path):
    """Version 1 had other counts; big-endian files have their version's bytes turned round."""
    data = plain.read_bytes()
    path = tmp_path / "x.gguf"
    path.write_bytes(data[:4] + struct.pack(">I", 3) + data[8:])
    with pytest.raises(UnsupportedModelError, match="GGUF version 50331648"):
        load_checkpoint(path)


def test_a_file_that_is_not_there_is_said_so(tmp_path):
    """Not a damaged one."""
    with pytest.raises(CheckpointError, match=r"there is no .*x\.gguf"):
        load_checkpoint(tmp_path / "x.gguf")


def test_without_the_package_the_error_says_what_to_install(plain, monkeypatch):
    """`gguf` is an extra."""
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ConfigError, match="pip install gguf"):
        load_checkpoint(plain)
