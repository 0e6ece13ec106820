"""`nanofn info MODEL`: what a model is, whether it runs here, and how much of it fits, without loading it."""

import argparse
import sys
from collections.abc import Iterator, Sequence

import torch

from nanofn.llm.assemble import pick_device
from nanofn.llm.locate import locate
from nanofn.llm.model_facts import Fit, ModelFacts, fit, inspect_model
from nanofn.llm.options import EngineOptions
from nanofn.model.config import ModelConfig
from nanofn.model.kv_cache import block_bytes

LENGTHS = (512, 2048, 8192, 32768)
"""Sequence lengths that the batch is said for."""


def run(arguments: Sequence[str]) -> int:
    """Say it on stdout. Returns 1 where the model is not supported, or has no tokenizer that can be loaded."""
    parser = argparse.ArgumentParser(
        prog="nanofn info",
        description="Say what a model is and what fits on this machine, from its files' headers alone.",
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a folder, a GGUF file, or OWNER/NAME on the hub")
    parser.add_argument("--revision", metavar="NAME", help="a branch, tag or commit on the hub")
    parser.add_argument("--dtype", default="auto", help="of weights and K/V: auto, float32, bfloat16 or float16")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    given = parser.parse_args(arguments)
    options = EngineOptions(dtype=given.dtype, device=given.device)
    device = pick_device(options.device)
    facts = inspect_model(locate(given.model, given.revision))
    for name, text in describe(facts, device, options):
        sys.stdout.write(f"{name:<15} {text}\n")
    return int(facts.refusal is not None or facts.tokenizer_obstacle is not None)


def describe(facts: ModelFacts, device: torch.device, options: EngineOptions) -> Iterator[tuple[str, str]]:
    """Say it line by line: what the line is about, and the text."""
    yield "model", str(facts.path)
    yield "architecture", facts.model_type if facts.config is None else _architecture(facts.config)
    stored = ", ".join(f"{dtype} in {tensors} tensors" for dtype, tensors, _ in facts.dtypes)
    yield "parameters", f"{facts.num_parameters:,} stored as {stored}; {_gib(facts.file_bytes)}"
    if facts.config is None:
        yield "supported", f"no: {facts.refusal}"
        return
    found = fit(facts.config, device, options)
    yield "supported", "yes"
    if facts.tokenizer_obstacle is not None:
        yield "tokenizer", f"no: {facts.tokenizer_obstacle}"
    yield "longest text", f"{facts.config.max_position_embeddings:,} tokens"
    dtype = str(found.dtype).removeprefix("torch.")
    yield "K/V", f"{block_bytes(facts.config, 1, dtype=found.dtype):,} bytes a token in {dtype}"
    where = "CPU" if device.type == "cpu" else torch.cuda.get_device_name(device)
    yield "this machine", f"{where}, {dtype}: weights take {_gib(found.weight_bytes)} of {_gib(found.free_bytes)} free"
    yield "room for", _room(found, options)


def _architecture(config: ModelConfig) -> str:
    parts = [
        f"{config.model_type}, {config.num_layers} layers of width {config.hidden_size}",
        f"{config.num_heads} heads of {config.head_dim} on {config.num_kv_heads} key/value heads",
        f"vocabulary {config.vocab_size:,}" + " with a tied head" * config.tie_word_embeddings,
    ]
    if config.experts is not None:
        parts.append(f"{config.experts.num_experts_per_token} of {config.experts.num_experts} experts per token")
    if config.rope_scaling is not None:
        kind = type(config.rope_scaling).__name__.removesuffix("Scaling").lower()
        parts.append(f"rotation stretched {config.rope_scaling.factor:g} times ({kind})")
    return ", ".join(parts)


def _room(found: Fit, options: EngineOptions) -> str:
    if found.pool is None:
        return "nothing: the weights leave no memory for K/V; a smaller dtype takes less"
    longest, num_tokens = found.pool.max_model_len, found.pool.num_blocks * options.block_size
    counts = [
        f"{min(options.max_num_seqs, num_tokens // length):,} of {length:,}" for length in LENGTHS if length < longest
    ]
    return f"sequences of up to {longest:,} tokens; at once " + ", ".join(
        [*counts, f"{max(1, num_tokens // longest):,} of {longest:,}"]
    )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"
