"""Damaged checkpoints by the hundred: each is a typed error or a warning, none costs memory or hangs."""

import json
import resource
import shutil
import struct
import sys
import warnings
from random import Random

import pytest
import torch
from safetensors.torch import load_file, save_file

gguf = pytest.importorskip("gguf", reason="some of the checkpoints are GGUF files")

from model.checkpoints import make_fixture
from model.gguf_files import make_gguf
from nanofn.device.checkpoint import load_checkpoint
from nanofn.errors import CheckpointError, CheckpointWarning, ConfigError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
NUMBER = 1_000
MORE_MIB = 100
"""What the process may grow by. The files have a few hundred kB; a size taken from a header could be anything."""


UNCHECKED = {
    "bos_token_id", "decoder_sparse_step", "eos_token_id", "max_position_embeddings", "max_window_layers",
    "num_experts_per_tok", "pad_token_id",
}  # fmt: skip
"""Numbers of a config that other values fit the weights as well."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with one file, one in shards, one with a mixture, and a GGUF file."""
    root = tmp_path_factory.mktemp("saved")
    sizes = {"num_hidden_layers": 1, "vocab_size": 31}
    make_fixture("qwen3", root / "single", **sizes).model.save_pretrained(root / "sharded", max_shard_size="20KB")
    make_fixture("qwen3 moe", root / "mixture", **sizes)
    make_gguf("llama", root / "gguf", gguf.GGMLQuantizationType.Q8_0, **sizes)
    shutil.rmtree(root / "gguf" / "source")
    return root


def header_of(path):
    """A file's header and its data."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def write_header(path, header, data):
    """Write a file with a header as given, whether it fits the data or not."""
    raw = json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + data)


def a_tensor(random, header):
    """The name of one tensor."""
    return random.choice(sorted(name for name in header if name != "__metadata__"))


def truncate_header(folder, random):
    """End the file within its header."""
    path = folder / SINGLE
    length = int.from_bytes(path.read_bytes()[:8], "little")
    path.write_bytes(path.read_bytes()[: random.randrange(8 + length)])


def truncate_data(folder, random):
    """Cut the last bytes."""
    path = folder / SINGLE
    path.write_bytes(path.read_bytes()[: -random.randint(1, 5_000)])


def change_dtype(folder, random):
    """Give a tensor a dtype that it has not, or that is none."""
    header, data = header_of(folder / SINGLE)
    entry = header[a_tensor(random, header)]
    entry["dtype"] = random.choice(
        ["F64", "I8", "F8_E4M3", "F8_E5M2", "BOOL", "U16", "F4", "float32", "", "\0", 7, None]
    )
    write_header(folder / SINGLE, header, data)


def overlap_offsets(folder, random):
    """Let two tensors lie on the same bytes."""
    header, data = header_of(folder / SINGLE)
    name = a_tensor(random, header)
    others = [entry for key, entry in header.items() if key not in {name, "__metadata__"}]
    header[name]["data_offsets"] = list(random.choice(others)["data_offsets"])
    write_header(folder / SINGLE, header, data)


def spoil_offsets(folder, random):
    """Give a tensor a place that it cannot have."""
    header, data = header_of(folder / SINGLE)
    entry = header[a_tensor(random, header)]
    first, end = entry["data_offsets"]
    entry["data_offsets"] = random.choice(
        [[end, first], [-4, end], [first, 1 << 62], [first], "0", [first + 4, end], [0.5, end], [first, first], None]
    )
    write_header(folder / SINGLE, header, data)


def spoil_shape(folder, random):
    """Give a tensor a shape that it has not."""
    header, data = header_of(folder / SINGLE)
    entry = header[a_tensor(random, header)]
    entry["shape"] = random.choice([[], [1 << 40, 1 << 40], [-1], [*entry["shape"][::-1], 1], [0], "x", None, [None]])
    write_header(folder / SINGLE, header, data)


def spoil_header_length(folder, random):
    """Lie about the header's length."""
    path = folder / SINGLE
    length = random.choice([1 << 60, (1 << 64) - 1, 0, 1, path.stat().st_size, random.randrange(1 << 40)])
    path.write_bytes(length.to_bytes(8, "little") + path.read_bytes()[8:])


def spoil_index(folder, random):
    """Let the index name a file that is none of the shards."""
    index = json.loads((folder / INDEX).read_text())
    names = sorted(index["weight_map"])
    file = random.choice(["model-99999-of-99999.safetensors", "../x", "/dev/zero", "", 7, None, [], SINGLE + "\0"])
    index["weight_map"][random.choice(names)] = file
    (folder / INDEX).write_text(json.dumps(index))


def drop_a_shard(folder, random):
    """Remove one shard."""
    random.choice(sorted(folder.glob("model-*.safetensors"))).unlink()


def plant_not_a_number(folder, random):
    """Put a NaN or an infinity among the weights."""
    tensors = load_file(folder / SINGLE)
    flat = tensors[random.choice(sorted(tensors))].view(-1)
    flat[random.randrange(len(flat))] = random.choice([float("nan"), float("inf"), -float("inf")])
    save_file(tensors, folder / SINGLE)


def rename_a_tensor(folder, random):
    """Call a tensor something else."""
    tensors = load_file(folder / SINGLE)
    name = random.choice(sorted(tensors))
    tensors[random.choice([f"{name}x", "", "model.layers.1" + name[14:], name.replace("weight", "qweight")])] = (
        tensors.pop(name)
    )
    save_file(tensors, folder / SINGLE)


def spoil_config(folder, random):
    """Change one number of config.json."""
    config = json.loads((folder / "config.json").read_text())
    numbers = sorted(key for key, value in config.items() if type(value) is int and key not in UNCHECKED)
    if "num_local_experts" in config:
        numbers.remove("intermediate_size")  # no layer is dense
    chosen = random.choice(numbers)
    config[chosen] = random.choice([0, -1, 1 << 40, 10**400, "8", None, [], {}, True, config[chosen] + 2])
    (folder / "config.json").write_text(json.dumps(config))


def nest_deeply(folder, random):
    """Put brackets in brackets, deeper than a parser goes."""
    name = random.choice(["config.json", "generation_config.json"])
    (folder / name).write_text('{"a":' + "[" * 100_000 + "]" * 100_000 + "}")


def cut_gguf(folder, random):
    """End a GGUF file early."""
    path = folder / "model.gguf"
    path.write_bytes(path.read_bytes()[: -random.randint(1, path.stat().st_size)])


def count_wrongly_in_gguf(folder, random):
    """Give it more tensors or keys than it has."""
    path = folder / "model.gguf"
    data, place = path.read_bytes(), random.choice([8, 16])
    path.write_bytes(
        data[:place] + struct.pack("<Q", random.choice([1 << 60, (1 << 64) - 1, 10**9])) + data[place + 8 :]
    )


KINDS = {
    truncate_header: "single",
    truncate_data: "single",
    change_dtype: "single",
    overlap_offsets: "single",
    spoil_offsets: "single",
    spoil_shape: "single",
    spoil_header_length: "single",
    spoil_index: "sharded",
    drop_a_shard: "sharded",
    plant_not_a_number: "single",
    rename_a_tensor: "single",
    spoil_config: "single",
    nest_deeply: "single",
    cut_gguf: "gguf",
    count_wrongly_in_gguf: "gguf",
    "a mixture's config": "mixture",
}


def peak_mib():
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def outcome(folder):
    """Load; returns the typed error or the warning, None where it loaded without a word."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            load_checkpoint(folder, dtype=torch.float32)
        except ConfigError as error:
            return error
    return next((each.message for each in caught if isinstance(each.message, CheckpointWarning)), None)


def test_a_thousand_damaged_checkpoints_are_errors_or_warnings(saved, tmp_path):
    """Sixteen kinds of damage in turn, each with its own random numbers; undamaged, the folders load without a word."""
    kinds = list(KINDS)
    for kind in set(KINDS.values()):
        assert outcome(saved / kind) is None
    before = peak_mib()
    for seed in range(NUMBER):
        damage = kinds[seed % len(kinds)]
        folder = shutil.copytree(saved / KINDS[damage], tmp_path / str(seed))
        random = Random(seed)
        (damage if callable(damage) else spoil_config)(folder, random)
        assert outcome(folder) is not None, f"seed {seed}: {damage} was not noticed"
        shutil.rmtree(folder)
    assert peak_mib() - before < MORE_MIB


@pytest.mark.parametrize("kind", ["single", "sharded", "gguf"])
def test_random_bytes_in_a_header_never_crash(kind, saved, tmp_path):
    """Bytes of headers, indexes and configs are changed at random: it loads, or the error is a typed one."""
    num_refused = 0
    for seed in range(100):
        folder = shutil.copytree(saved / kind, tmp_path / str(seed))
        random = Random(seed)
        path = random.choice(sorted(path for path in folder.iterdir() if path.name != "generation_config.json"))
        data = bytearray(path.read_bytes())
        for _ in range(random.randint(1, 3)):
            data[random.randrange(min(len(data), 2_000))] = random.randrange(256)
        path.write_bytes(data)
        num_refused += outcome(folder) is not None
        shutil.rmtree(folder)
    assert num_refused > 20


def test_weights_that_are_not_numbers_are_a_warning_that_names_them(saved, tmp_path):
    """The model is loaded: what does not reach them works."""
    folder = shutil.copytree(saved / "single", tmp_path / "nan")
    tensors = load_file(folder / SINGLE)
    tensors["model.layers.0.mlp.down_proj.weight"][3, 5] = float("nan")
    save_file(tensors, folder / SINGLE)
    with pytest.warns(CheckpointWarning, match=r"1 of \d+ weights .*model\.layers\.0\.mlp\.down_proj\.weight first"):
        load_checkpoint(folder)


def test_a_cast_that_overflows_is_a_warning(saved, tmp_path):
    """A number of float32 that float16 does not have."""
    folder = shutil.copytree(saved / "single", tmp_path / "large")
    tensors = load_file(folder / SINGLE)
    tensors["model.norm.weight"][0] = 1e6
    save_file(tensors, folder / SINGLE)
    with pytest.warns(CheckpointWarning, match=r'model\.norm\.weight first.*dtype="float32"'):
        load_checkpoint(folder, dtype=torch.float16)


def test_more_layers_than_tensors_are_refused_before_they_are_listed(saved, tmp_path):
    """A billion layers in a config cost nothing."""
    for key in ("num_hidden_layers", "num_local_experts"):
        folder = shutil.copytree(saved / "mixture", tmp_path / key)
        config = json.loads((folder / "config.json").read_text()) | {key: 10**9}
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(CheckpointError, match=r"1000000000, and .* holds \d+ tensors"):
            load_checkpoint(folder)


def test_experts_of_all_layers_together_are_refused_before_they_are_listed(saved, tmp_path):
    """Neither number is above that of the tensors, and their product would be."""
    folder = shutil.copytree(saved / "mixture", tmp_path / "product")
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_hidden_layers": 30, "num_local_experts": 30, "num_experts": 30}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"num_experts 30 in 30 layers, in all 900, and .* holds \d+ tensors"):
        load_checkpoint(folder)
