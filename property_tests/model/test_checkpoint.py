"""Loading a folder: every tensor accounted for, every damaged file named."""

import io
import json
import os
import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

import nanofn.device.checkpoint as checkpoint_module
from model.checkpoints import FAMILIES, make_fixture
from nanofn.device.checkpoint import load_checkpoint
from nanofn.errors import CheckpointError, ConfigError, UnsupportedModelError

NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Folders as transformers saves them: untied, tied, and untied in shards."""
    root = tmp_path_factory.mktemp("saved")
    make_fixture("qwen3 with biases", root / "untied")
    make_fixture("qwen3 tied", root / "tied")
    fixture = make_fixture("qwen3 with biases", root / "sharded")
    shutil.rmtree(root / "sharded")
    fixture.model.save_pretrained(root / "sharded", max_shard_size="60KB")
    return root


@pytest.fixture
def folder(saved, tmp_path):
    """Copies one of the saved folders, to be damaged."""

    def copy(kind):
        return shutil.copytree(saved / kind, tmp_path / kind)

    return copy


def rewrite(folder, change):
    """Change a folder's tensors."""
    tensors = load_file(folder / SINGLE)
    change(tensors)
    save_file(tensors, folder / SINGLE)


def edit_json(path, **changes):
    """Change keys of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def tensors_of(params):
    """All tensors of a tree, by place."""
    found = {"embedding": params.embedding, "final_norm": params.final_norm, "head": params.head}
    for index, layer in enumerate(params.layers):
        for name in ("input_norm", "qkv_weight", "qkv_bias", "q_norm", "k_norm", "output_weight", "output_bias"):
            found[f"{index}.{name}"] = getattr(layer, name)
        for name in ("mlp_norm", "gate_up_weight", "down_weight"):
            found[f"{index}.{name}"] = getattr(layer, name)
    return found


@pytest.mark.parametrize("name", FAMILIES)
def test_the_tree_holds_exactly_the_stored_values(name, tmp_path):
    """Q, K, V and gate, up lie below each other in one matrix; everything else is as stored."""
    fixture = make_fixture(name, tmp_path)
    params = load_checkpoint(tmp_path).params
    stored = fixture.model.state_dict()
    assert torch.equal(params.embedding, stored["model.embed_tokens.weight"])
    assert torch.equal(params.head, stored["lm_head.weight"])
    assert (params.head is params.embedding) == (name == "qwen3 tied")
    for index, layer in enumerate(params.layers):
        prefix = f"model.layers.{index}."
        qkv = torch.cat([stored[f"{prefix}self_attn.{x}_proj.weight"] for x in "qkv"])
        assert torch.equal(layer.qkv_weight, qkv)
        if layer.router_weight is None:
            gate_up = torch.cat([stored[f"{prefix}mlp.{x}_proj.weight"] for x in ("gate", "up")])
            assert torch.equal(layer.gate_up_weight, gate_up)
            assert torch.equal(layer.down_weight, stored[prefix + "mlp.down_proj.weight"])
        else:
            assert torch.equal(layer.router_weight, stored[prefix + "mlp.gate.weight"])
            assert torch.equal(layer.gate_up_weight, stored[prefix + "mlp.experts.gate_up_proj"])
            assert torch.equal(layer.down_weight, stored[prefix + "mlp.experts.down_proj"])
        assert (layer.qkv_bias is None) == (prefix + "self_attn.q_proj.bias" not in stored)


def test_shards_and_one_file_load_alike(saved):
    """The same weights, however they are cut into files."""
    assert len(list((saved / "sharded").glob("*.safetensors"))) > 2
    one, many = (tensors_of(load_checkpoint(saved / kind).params) for kind in ("untied", "sharded"))
    assert one.keys() == many.keys()
    assert all(torch.equal(one[name], many[name]) for name in one)


def test_files_that_the_index_does_not_name_do_not_count(folder):
    """A stray file beside the shards changes nothing, not even a damaged one."""
    path = folder("sharded")
    (path / "consolidated.safetensors").write_bytes(b"junk")
    (path / SINGLE).write_bytes(b"junk")
    load_checkpoint(path)


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("wanted", [None, torch.float32, torch.bfloat16])
def test_a_cast_is_explicit_and_reported(stored, wanted, folder):
    """Without `dtype` the config's is kept; with it, what was cast is counted. Frequencies stay in fp32."""
    path = folder("tied")
    rewrite(path, lambda tensors: tensors.update({k: v.to(stored) for k, v in tensors.items()}))
    edit_json(path / "config.json", dtype=str(stored).removeprefix("torch."))
    checkpoint = load_checkpoint(path, dtype=wanted)
    target = wanted or stored
    tensors = [tensor for tensor in tensors_of(checkpoint.params).values() if tensor is not None]
    assert {tensor.dtype for tensor in tensors} == {target}
    assert checkpoint.params.rope.inverse_frequencies.dtype == torch.float32
    assert checkpoint.casts == (() if target == stored else ((NAMES[stored], len(load_file(path / SINGLE))),))


def test_without_any_declared_dtype_the_embedding_decides(folder):
    """A config that names no dtype: the weights keep theirs."""
    path = folder("tied")
    rewrite(path, lambda tensors: tensors.update({k: v.to(torch.bfloat16) for k, v in tensors.items()}))
    edit_json(path / "config.json", dtype=None)
    assert load_checkpoint(path).params.embedding.dtype == torch.bfloat16


def test_a_tied_head_that_is_stored_all_the_same_is_passed_over(folder):
    """As are rotary frequencies, which old checkpoints hold."""
    path = folder("tied")
    extra = {"lm_head.weight": torch.zeros(211, 48), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}
    rewrite(path, lambda tensors: tensors.update(extra))
    params = load_checkpoint(path).params
    assert params.head is params.embedding


@pytest.mark.parametrize("config_eos", [None, 3, [3, 5]])
@pytest.mark.parametrize("generation_eos", [None, 7, [3, 9]])
def test_eos_ids_come_from_both_configs_together(config_eos, generation_eos, folder):
    """The union, sorted; generation_config.json is handed on as it is."""
    path = folder("tied")
    edit_json(path / "config.json", eos_token_id=config_eos)
    defaults = {"eos_token_id": generation_eos, "temperature": 0.6}
    (path / "generation_config.json").write_text(json.dumps(defaults))
    checkpoint = load_checkpoint(path)
    both = [value if isinstance(value, list) else [value] for value in (config_eos, generation_eos)]
    assert checkpoint.eos_token_ids == tuple(sorted({x for ids in both for x in ids} - {None}))
    assert checkpoint.generation_defaults == defaults


def test_a_folder_without_generation_config_has_no_defaults(folder):
    """Absent is empty; damaged is an error."""
    path = folder("tied")
    (path / "generation_config.json").unlink()
    assert load_checkpoint(path).generation_defaults == {}
    (path / "generation_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"generation_config\.json cannot be read as JSON"):
        load_checkpoint(path)


def drop_shard(path):
    """Remove one shard."""
    sorted(path.glob("model-*.safetensors"))[1].unlink()


def cut_shard(path):
    """Cut the last bytes of one shard."""
    shard = sorted(path.glob("model-*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:-10])


def cut_header(path):
    """Leave less than the header says it has."""
    (path / SINGLE).write_bytes((path / SINGLE).read_bytes()[:100])


def spoil_header(path):
    """Break the header's JSON, all lengths kept."""
    data = bytearray((path / SINGLE).read_bytes())
    data[8:12] = b"\xff\xff\xff\xff"
    (path / SINGLE).write_bytes(data)


def lengthen(path):
    """Add bytes that no tensor owns."""
    (path / SINGLE).write_bytes((path / SINGLE).read_bytes() + b"12345678")


def move_in_index(path):
    """Let the index say that a tensor lies in another shard."""
    index = json.loads((path / INDEX).read_text())
    files = sorted(set(index["weight_map"].values()))
    index["weight_map"]["model.norm.weight"] = next(f for f in files if f != index["weight_map"]["model.norm.weight"])
    (path / INDEX).write_text(json.dumps(index))


def duplicate(path):
    """Store one tensor in two shards."""
    first, second = sorted(path.glob("model-*.safetensors"))[:2]
    tensors = load_file(first) | load_file(second)
    save_file(tensors, second)


def lose_target(path):
    """Leave a link to weights that are gone, as in a cache that was cleaned."""
    (path / SINGLE).unlink()
    (path / SINGLE).symlink_to("../blobs/0123")


def put_pipe(path):
    """Put a pipe in the weights' place: whoever opened it would wait."""
    (path / SINGLE).unlink()
    os.mkfifo(path / SINGLE)


def put_folder(path):
    """Put a folder in the place of a shard."""
    shard = min(path.glob("model-*.safetensors"))
    shard.unlink()
    shard.mkdir()


def keep_a_stale_index(path):
    """Merge shards and leave their index."""
    tensors = {}
    for shard in path.glob("model-*.safetensors"):
        tensors |= load_file(shard)
        shard.unlink()
    save_file(tensors, path / SINGLE)


def name_outside(path):
    """Let the index name a file of another folder."""
    index = json.loads((path / INDEX).read_text())
    index["weight_map"]["model.norm.weight"] = "../model.safetensors"
    (path / INDEX).write_text(json.dumps(index))


NORM, DOWN = "model.layers.1.self_attn.q_norm.weight", "model.layers.2.mlp.down_proj.weight"
BAD = {
    "no folder": ("tied", shutil.rmtree, "is not a folder"),
    "no config": ("tied", lambda p: (p / "config.json").unlink(), r"has no config\.json"),
    "unreadable config": (
        "tied",
        lambda p: (p / "config.json").write_text("{'a'"),
        r"config\.json cannot be read as JSON",
    ),
    "a config that is a list": ("tied", lambda p: (p / "config.json").write_text("[]"), "holds a list"),
    "no weights": ("tied", lambda p: (p / SINGLE).unlink(), "has neither model.safetensors nor"),
    "weights of another kind": (
        "tied",
        lambda p: (p / SINGLE).rename(p / "pytorch_model.bin"),
        r"it has pytorch_model\.bin, which nanofn does not load",
    ),
    "weights of another name": (
        "tied",
        lambda p: (p / SINGLE).rename(p / "mine.safetensors"),
        r"it has mine\.safetensors, which nanofn does not load; rename mine\.safetensors to model\.safetensors",
    ),
    "a link to nowhere": ("tied", lose_target, r"model\.safetensors is a link to \.\./blobs/0123, which is not there"),
    "a pipe": ("tied", put_pipe, r"model\.safetensors is not a file"),
    "a folder for a shard": ("sharded", put_folder, r"model-00001-of\S+ is not a file"),
    "an index without its shards": (
        "sharded",
        keep_a_stale_index,
        r"or remove the index if model\.safetensors is whole",
    ),
    "a missing shard": ("sharded", drop_shard, r"lacks 1 of \d+ shards.*model-00002-of"),
    "a truncated shard": (
        "sharded",
        cut_shard,
        r"model-00002-of\S+ is truncated: it has \d+ bytes, its header describes \d+",
    ),
    "a truncated header": ("tied", cut_header, "is truncated: it has 100 bytes, its header alone would end at"),
    "an empty file": ("tied", lambda p: (p / SINGLE).write_bytes(b""), "is truncated: it has 0 bytes"),
    "a damaged header": ("tied", spoil_header, "has a damaged header"),
    "surplus bytes": ("tied", lengthen, "is damaged: it has"),
    "a pointer file": (
        "tied",
        lambda p: (p / SINGLE).write_text("version https://git-lfs.github.com/spec/v1\n"),
        "git lfs pull",
    ),
    "an index without a map": ("sharded", lambda p: (p / INDEX).write_text("{}"), "has no weight_map"),
    "an index that errs": ("sharded", move_in_index, r"says that model\.norm\.weight is in model-\S+, which lacks it"),
    "an index that leads away": ("sharded", name_outside, "not a file of its own folder"),
    "a tensor stored twice": ("sharded", duplicate, r"is in both model-00001-of\S+ and model-00002-of"),
    "a missing tensor": ("untied", lambda p: rewrite(p, lambda t: t.pop(NORM)), rf"missing 1 of \d+ tensors: {NORM}"),
    "a surplus tensor": (
        "untied",
        lambda p: rewrite(p, lambda t: t.update({"model.layers.3.x": torch.zeros(1)})),
        r"surplus 1: model\.layers\.3\.x",
    ),
    "a misshapen tensor": (
        "untied",
        lambda p: rewrite(p, lambda t: t.update({DOWN: t[DOWN][:, :79].clone()})),
        rf"misshapen 1: {DOWN} has \[48, 79\] and needs \[48, 80\]",
    ),
    "a transposed tensor": (
        "untied",
        lambda p: rewrite(p, lambda t: t.update({DOWN: t[DOWN].T.contiguous()})),
        rf"misshapen 1: {DOWN} has \[80, 48\] and needs \[48, 80\]",
    ),
    "an untied head that is absent": (
        "untied",
        lambda p: rewrite(p, lambda t: t.pop("lm_head.weight")),
        "missing 1 of .*lm_head.weight; set tie_word_embeddings to true",
    ),
    "biases that the config does not know": (
        "untied",
        lambda p: edit_json(p / "config.json", attention_bias=False),
        r"surplus 12: .* and 4 more",
    ),
    "another vocabulary": (
        "tied",
        lambda p: edit_json(p / "config.json", vocab_size=212),
        r"embed_tokens\.weight has \[211, 48\] and needs \[212, 48\]",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_folder_is_refused_with_names_and_numbers(case, folder):
    """What is wrong, with which file, tensor and number, and what to do."""
    kind, damage, message = BAD[case]
    path = folder(kind)
    damage(path)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(path)


def test_a_header_longer_than_the_format_allows_is_not_parsed(folder):
    """The length is within the file, which is what a wrong one of a large file can be; the file is sparse."""
    path = folder("tied") / SINGLE
    with path.open("r+b") as file:
        file.write((100_000_001).to_bytes(8, "little"))
        file.truncate(200_000_000)
    with pytest.raises(CheckpointError, match=r"would have 100000001 bytes, the format allows 100000000"):
        load_checkpoint(path.parent)


def test_what_the_system_refuses_is_said_as_it_is(folder, monkeypatch):
    """No permission is no damage."""
    path = folder("tied")

    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(checkpoint_module, "open_source", refuse)
    with pytest.raises(CheckpointError, match=r"tied cannot be read \(.*Permission denied.*; check its permissions"):
        load_checkpoint(path)


def test_everything_wrong_is_listed_at_once(folder):
    """Missing, surplus and misshapen tensors come in one message."""
    path = folder("untied")

    def change(tensors):
        tensors["other"] = tensors.pop(NORM)
        tensors[DOWN] = tensors[DOWN][:1].clone()

    rewrite(path, change)
    with pytest.raises(CheckpointError, match=r"missing 1 .*; surplus 1: other; misshapen 1: "):
        load_checkpoint(path)


def test_weights_of_another_type_are_refused_by_name(folder):
    """An eight-bit tensor is not cast in silence."""
    path = folder("tied")
    rewrite(path, lambda tensors: tensors.update({DOWN: tensors[DOWN].to(torch.int8)}))
    with pytest.raises(UnsupportedModelError, match=rf"{DOWN} is stored as I8"):
        load_checkpoint(path)


def test_a_bad_folder_leaves_the_next_load_alone(folder):
    """After an error the same process loads a good folder."""
    path = folder("tied")
    good = (path / SINGLE).read_bytes()
    lengthen(path)
    with pytest.raises(CheckpointError):
        load_checkpoint(path)
    (path / SINGLE).write_bytes(good)
    load_checkpoint(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": "linear"},
        {"rope_parameters": 5},
        {"layer_types": 5},
        {"architectures": 5},
        {"model_type": ["a"]},
    ],
    ids=str,
)
def test_values_of_other_types_in_a_config_are_typed_errors(folder, changes) -> None:
    """Whatever stands where an object or a list should."""
    path = folder("tied")
    edit_json(path / "config.json", **changes)
    with pytest.raises(ConfigError):
        load_checkpoint(path)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


def test_a_bar_shows_bytes_on_a_terminal_and_nothing_elsewhere(saved, monkeypatch):
    """All bytes of the weights, and the rate; a file of a log gets none of it."""
    monkeypatch.setattr(checkpoint_module, "BAR_DELAY_S", 0.0)
    for stream, is_shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        checkpoint = load_checkpoint(saved / "sharded")
        assert ("Loading: 100%" in stream.getvalue()) == is_shown
        assert ("B/s" in stream.getvalue()) == is_shown
    assert checkpoint.num_bytes == sum(tensor.nbytes for tensor in tensors_of(checkpoint.params).values())
    assert checkpoint.seconds > 0
