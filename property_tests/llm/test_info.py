"""`nanofn info`: facts from headers, what fits, and why a model is not supported."""

import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from nanofn import LLM
from nanofn.cli import main
from nanofn.device.checkpoint import load_checkpoint
from nanofn.llm.locate import embedded_model
from nanofn.llm.model_facts import fit, inspect_model
from nanofn.llm.options import EngineOptions
from nanofn.model.kv_cache import allocate_kv_cache
from nanofn.model.params import ModelParams


@pytest.fixture
def folder(tmp_path):
    """A copy of the embedded model."""
    return shutil.copytree(embedded_model(), tmp_path / "model")


def edit(folder, **changes):
    """Change keys of config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def lines_of(capsys, *arguments):
    """The command's status, and its lines by what they are about."""
    status = main(["info", *map(str, arguments)])
    lines = capsys.readouterr().out.splitlines()
    return status, {line[:15].strip(): line[16:] for line in lines}


def test_it_says_what_the_embedded_model_is(capsys):
    """Sizes, parameters, bytes of K/V: each as the weights and the cache have them."""
    status, lines = lines_of(capsys, "--device", "cpu")
    checkpoint = load_checkpoint(embedded_model())
    config = checkpoint.config
    assert status == 0
    assert lines["architecture"].startswith(
        f"qwen3, {config.num_layers} layers of width {config.hidden_size}, {config.num_heads} heads of {config.head_dim} "
        f"on {config.num_kv_heads} key/value heads"
    )
    assert lines["parameters"].startswith(f"{count(checkpoint.params):,} stored as BF16 in ")
    assert lines["supported"] == "yes"
    assert lines["longest text"] == f"{config.max_position_embeddings:,} tokens"
    cache = allocate_kv_cache(config, 1, 1, dtype=torch.float32)
    assert lines["K/V"] == f"{sum(tensor.nbytes for tensor in (*cache.k, *cache.v)):,} bytes a token in float32"


def count(params: ModelParams) -> int:
    """All numbers of a tied model."""
    layers = [getattr(layer, name) for layer in params.layers for name in layer.__slots__ if name != "__weakref__"]
    tensors = [params.embedding, params.final_norm, *layers]
    return sum(tensor.numel() for tensor in tensors if tensor is not None)


def test_the_room_it_promises_is_the_engines(monkeypatch, capsys):
    """With the same memory free, the engine's pool has as many blocks as `info` counts."""
    free = 96 << 20
    weights = inspect_model(embedded_model()).num_parameters * 4
    monkeypatch.setattr("nanofn.llm.model_facts.free_bytes", lambda device: free + weights)
    monkeypatch.setattr("nanofn.llm.assemble.free_bytes", lambda device: free)
    found = fit(inspect_model(embedded_model()).config, torch.device("cpu"), EngineOptions())
    assert found.weight_bytes == weights
    with LLM(device="cpu") as llm:
        limits = llm.state.limits
        assert (found.pool.num_blocks, found.pool.max_model_len) == (limits.num_blocks, limits.max_model_len)
    _, lines = lines_of(capsys, "--device", "cpu")
    tokens, longest = limits.num_blocks * limits.block_size, limits.max_model_len
    assert tokens > longest > 512
    assert lines["room for"] == (
        f"sequences of up to {longest:,} tokens; at once {tokens // 512} of 512, {tokens // longest} of {longest:,}"
    )


def test_a_smaller_dtype_leaves_more_room(capsys):
    """`--dtype` counts as in `LLM`."""
    both = [lines_of(capsys, "--device", "cpu", "--dtype", dtype)[1]["K/V"] for dtype in ("float32", "bfloat16")]
    wide, narrow = (int(text.split()[0].replace(",", "")) for text in both)
    assert wide == 2 * narrow
    assert both[1].endswith("a token in bfloat16")


def test_no_room_is_said_so(monkeypatch, capsys):
    """The weights alone are too much."""
    monkeypatch.setattr("nanofn.llm.model_facts.free_bytes", lambda device: 1 << 20)
    status, lines = lines_of(capsys, "--device", "cpu")
    assert status == 0
    assert "nothing: the weights leave no memory" in lines["room for"]


DOWN = "model.layers.0.mlp.down_proj.weight"


def pack(folder):
    """Store one matrix as GPTQ and AWQ do, without a word in the config."""
    tensors = load_file(folder / "model.safetensors")
    tensors[DOWN.replace("weight", "qweight")] = tensors.pop(DOWN).to(torch.int32)
    save_file(tensors, folder / "model.safetensors")


def store_as_fp8(folder):
    """Store one matrix in eight bits."""
    tensors = load_file(folder / "model.safetensors")
    tensors[DOWN] = tensors[DOWN].to(torch.float8_e4m3fn)
    save_file(tensors, folder / "model.safetensors")


REFUSED = {
    "an architecture": (lambda path: edit(path, model_type="gemma3"), "model_type 'gemma3'"),
    "fp8": (lambda path: edit(path, quantization_config={"quant_method": "fp8"}), r"quant_method 'fp8'"),
    "AWQ": (lambda path: edit(path, quantization_config={"quant_method": "awq"}), r"quant_method 'awq'"),
    "GPTQ": (lambda path: edit(path, quantization_config={"quant_method": "gptq"}), r"quant_method 'gptq'"),
    "a scaling": (lambda path: edit(path, rope_scaling={"type": "dynamic", "factor": 2}), "rope type 'dynamic'"),
    "packed weights": (pack, r"quantised weights \(model.layers.0.mlp.down_proj.qweight"),
    "fp8 weights alone": (store_as_fp8, r"down_proj\.weight is stored as F8_E4M3"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_says_why_a_model_is_not_supported(case, folder, capsys):
    """By name, with the facts that can be had all the same; the status tells a script. Loading gives the same reason."""
    change, reason = REFUSED[case]
    change(folder)
    status, lines = lines_of(capsys, folder)
    assert status == 1
    assert lines["supported"].startswith("no: ")
    assert re.search(reason, lines["supported"])
    assert f"{inspect_model(embedded_model()).num_parameters:,} stored as" in lines["parameters"]
    assert main(["Once", "--model", str(folder)]) == 1
    assert re.search(reason, capsys.readouterr().err)


def test_a_model_without_a_tokenizer_is_said_so(folder, capsys):
    """It would not run as it is: the status says so too, and the facts are there all the same."""
    for path in folder.glob("token*"):
        path.unlink()
    status, lines = lines_of(capsys, folder, "--device", "cpu")
    assert (status, lines["supported"]) == (1, "yes")
    assert re.match(r"no: .* has none of tokenizer\.json, .*Pass tokenizer=FOLDER", lines["tokenizer"])
    assert "room for" in lines


def test_a_gguf_file_whose_tokenizer_is_refused_says_so(tmp_path, capsys):
    """Small files for tests have none at all; that of a SentencePiece vocabulary ends the same way."""
    gguf = pytest.importorskip("gguf", reason="GGUF files need the extra `gguf`")
    from model.gguf_files import make_gguf  # needs the package

    path = make_gguf("llama", tmp_path, gguf.GGMLQuantizationType.F32).path
    status, lines = lines_of(capsys, path, "--device", "cpu")
    assert (status, lines["supported"]) == (1, "yes")
    assert lines["tokenizer"].startswith("no: tokenizer.ggml.model None is not supported")


def test_without_a_declared_dtype_it_is_the_embeddings(folder):
    """As the engine takes it."""
    tensors = {name: tensor.to(torch.float16) for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors")
    edit(folder, dtype=None, torch_dtype=None)
    assert inspect_model(folder).config.dtype == "float16"
    assert load_checkpoint(folder).params.embedding.dtype == torch.float16


def test_a_damaged_folder_is_an_error(folder, capsys):
    """Not a model that is merely unsupported."""
    (folder / "config.json").unlink()
    assert main(["info", str(folder)]) == 1
    assert "has no config.json" in capsys.readouterr().err
