"""A checkpoint of a published model's dimensions with random weights, made where it is needed.

python benchmarks/random_checkpoint.py qwen3-0.6b FOLDER [--tokenizer FOLDER] [--device cuda]
"""

import argparse
import json
import shutil
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from tokenizers import Tokenizer

from model_dimensions import PUBLISHED, config_json
from nanofn.device.random_source import random_tensor
from nanofn.embedded.save import write_safetensors
from random_tokenizer import save_random_tokenizer

MAX_SHARD_BYTES = 4 << 30

NUM_WRITERS = 4
"""Shards that are written at once where they are drawn on a GPU, in seconds that a benchmark pays for. Each is held on the GPU."""

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def tensor_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Name the stored tensors of a Qwen3 checkpoint, dense or with experts, each with its shape."""
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    q_size, kv_size = (config[key] * head_dim for key in ("num_attention_heads", "num_key_value_heads"))
    layer = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (q_size, hidden),
        "self_attn.k_proj": (kv_size, hidden),
        "self_attn.v_proj": (kv_size, hidden),
        "self_attn.q_norm": (head_dim,),
        "self_attn.k_norm": (head_dim,),
        "self_attn.o_proj": (hidden, q_size),
        "post_attention_layernorm": (hidden,),
    }
    if num_experts := config.get("num_experts", 0):
        layer["mlp.gate"] = (num_experts, hidden)
        for expert in range(num_experts):
            layer |= _gated_unit(f"mlp.experts.{expert}", hidden, config["moe_intermediate_size"])
    else:
        layer |= _gated_unit("mlp", hidden, config["intermediate_size"])
    shapes = {"model.embed_tokens": (config["vocab_size"], hidden)}
    for number in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{number}.{name}": shape for name, shape in layer.items()}
    shapes["model.norm"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head"] = (config["vocab_size"], hidden)
    return {f"{name}.weight": shape for name, shape in shapes.items()}


def _gated_unit(prefix: str, hidden: int, inner: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}.gate_proj": (inner, hidden),
        f"{prefix}.up_proj": (inner, hidden),
        f"{prefix}.down_proj": (hidden, inner),
    }


def make_checkpoint(
    name: str,
    folder: Path,
    *,
    tokenizer: Path | None = None,
    device: str = "cpu",
    max_shard_bytes: int = MAX_SHARD_BYTES,
    with_weights: bool = True,
) -> Path:
    """Write a checkpoint, always the same on one kind of device. What is there already, and whole, is left alone.

    Args:
        name: Key of `PUBLISHED`.
        folder: Where to; made if need be.
        tokenizer: A folder to copy the tokenizer from; None makes one with a word for every id.
        device: Where to draw the weights. One shard at a time is held, on a GPU four.
        max_shard_bytes: Most bytes of a file.
        with_weights: Whether files of weights are wanted; `LLM(folder, load_format="dummy")` needs none.

    Returns:
        The folder.

    Raises:
        ValueError: The tokenizer has more ids than the model, or the folder holds something else.
    """
    config = config_json(name)
    done = folder / "config.json"  # written last
    if done.exists():
        if not (json.loads(done.read_text(encoding="utf-8"))).items() >= config.items():
            raise ValueError(f"{folder} holds another checkpoint than {name}; name another folder, or delete it")
        if not with_weights or any(folder.glob("*.safetensors")):
            return folder
        done.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    eos_token_id = _put_tokenizer(tokenizer, folder, config["vocab_size"])
    if with_weights:
        _write_weights(tensor_shapes(config), folder, torch.Generator(device).manual_seed(0), max_shard_bytes)
    done.write_text(json.dumps(config | {"eos_token_id": eos_token_id}, indent=1), encoding="utf-8")
    return folder


def _put_tokenizer(source: Path | None, folder: Path, vocab_size: int) -> int:
    """Copy or make the tokenizer; returns the id that ends a text."""
    if source is None:
        save_random_tokenizer(vocab_size, folder)
    else:
        for name in TOKENIZER_FILES:
            if (source / name).exists():
                shutil.copy(source / name, folder)
    inner = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if inner.get_vocab_size() > vocab_size:
        raise ValueError(f"the tokenizer in {source} has {inner.get_vocab_size()} ids, the model {vocab_size}")
    names = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    eos_token_id: int = inner.token_to_id(names["eos_token"])
    return eos_token_id


def _write_weights(
    shapes: Mapping[str, tuple[int, ...]], folder: Path, generator: torch.Generator, max_shard_bytes: int
) -> None:
    outlines = {name: torch.empty(shape, dtype=torch.bfloat16, device="meta") for name, shape in shapes.items()}
    split = split_torch_state_dict_into_shards(outlines, max_shard_size=max_shard_bytes)
    num_writers = NUM_WRITERS if generator.device.type == "cuda" else 1
    with ThreadPoolExecutor(num_writers) as writers:
        under_way = deque[Future[None]]()
        for file, names in split.filename_to_tensors.items():
            if len(under_way) == num_writers:
                under_way.popleft().result()
            drawn = {name: random_tensor(name, shapes[name], torch.bfloat16, generator) for name in names}
            under_way.append(writers.submit(write_safetensors, folder / file, drawn))
        while under_way:
            under_way.popleft().result()
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def main() -> None:
    """Make one from the command line."""
    parser = argparse.ArgumentParser(description="Make a checkpoint with random weights.")
    parser.add_argument("name", choices=PUBLISHED)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokenizer", type=Path, help="a folder with another tokenizer than random words")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    print(make_checkpoint(given.name, given.folder, tokenizer=given.tokenizer, device=given.device))


if __name__ == "__main__":
    main()
