"""The recipe of the embedded model: `python -m nanofn.embedded.train FOLDER --texts TEXTS`, minutes on one GPU.

TEXTS is a folder made by `nanofn.embedded.corpora`; nothing is downloaded here. FOLDER gets the checkpoint as `model/` and
the course of the training as `training.json`. The same seed gives the same texts, vocabulary and order of rows anywhere,
and on a CPU the same weights.
"""

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from attrs import asdict, evolve, field, frozen
from tokenizers import Tokenizer
from torch import Tensor

from nanofn.embedded.corpora import Corpus, read_corpora
from nanofn.embedded.dense import dense_logits, initial_params, on_device, trainable
from nanofn.embedded.markup import SPECIAL_TOKENS
from nanofn.embedded.measure import bits_per_byte
from nanofn.embedded.mixture import GENERATED, Stream, all_sources, draw_rows, make_stream
from nanofn.embedded.save import save_folder
from nanofn.embedded.vocabulary import train_tokenizer
from nanofn.model.config import ModelConfig
from nanofn.model.params import ModelParams

CONFIG = ModelConfig(
    model_type="qwen3",
    vocab_size=4096,
    hidden_size=256,
    intermediate_size=768,
    num_layers=8,
    num_heads=8,
    num_kv_heads=4,
    head_dim=32,
    rms_norm_eps=1e-6,
    rope_theta=10_000.0,
    max_position_embeddings=1024,
    tie_word_embeddings=True,
    has_qk_norm=True,
)
"""7,344,896 parameters, 14.0 MiB in bfloat16."""

SHARES = {GENERATED: 0.5, "chats": 0.2, "dictionary": 0.2, "novels": 0.1}


@frozen(kw_only=True)
class Recipe:
    """What decides the weights.

    Attributes:
        seed: Of texts, first weights, rows and dropout.
        num_generated: Generated documents.
        num_vocab_generated: Of these, how many the vocabulary is made from, besides all natural text.
        num_steps: Updates.
        rows_per_step: Rows in one update.
        row_length: Tokens that are predicted in a row.
        shares: Of rows, by source; a source that is missing is not trained on.
        dropout: See `dense_logits`.
        peak_rate: Learning rate after `num_warmup_steps`; from there it falls to 0 along a half cosine.
        num_warmup_steps: Updates of a rising rate.
        weight_decay: Of matrices.
        max_gradient_norm: Longer gradients are shortened to it.
        measure_every: Updates between two looks at held-out text. The weights that did best there are kept.
    """

    seed: int = 11
    num_generated: int = 150_000
    num_vocab_generated: int = 10_000
    num_steps: int = 1500
    rows_per_step: int = 64
    row_length: int = 1024
    shares: Mapping[str, float] = field(factory=lambda: dict(SHARES))
    dropout: float = 0.1
    peak_rate: float = 2e-3
    num_warmup_steps: int = 100
    weight_decay: float = 0.1
    max_gradient_norm: float = 1.0
    measure_every: int = 150


@frozen(eq=False)
class Trained:
    """What came of a recipe.

    Attributes:
        params: The weights that did best on held-out text, on the CPU.
        losses: Of each update, in nats per token.
        held_out: {"step": updates before, source: bits per byte, ...} for each look.
    """

    params: ModelParams
    losses: list[float]
    held_out: list[dict[str, float]]


def make_tokenizer(recipe: Recipe, sources: Mapping[str, Corpus], vocab_size: int) -> Tokenizer:
    """Make the vocabulary from what is trained on."""
    natural = (corpus.train for name, corpus in sorted(sources.items()) if name != GENERATED)
    return train_tokenizer(chain(sources[GENERATED].train[: recipe.num_vocab_generated], *natural), vocab_size)


def train(
    recipe: Recipe,
    config: ModelConfig,
    tokenizer: Tokenizer,
    sources: Mapping[str, Corpus],
    device: torch.device,
) -> Trained:
    """Train, in bfloat16 on a GPU and in float32 on a CPU."""
    streams = {
        name: make_stream(tokenizer, corpus.train, recipe.seed)
        for name, corpus in sources.items()
        if recipe.shares.get(name)
    }
    params = on_device(initial_params(config, torch.Generator().manual_seed(recipe.seed)), device)
    losses, held_out, best, kept = [], [], math.inf, params
    started = time.perf_counter()
    with _repeatable(recipe.seed, device):
        for step, loss in enumerate(_updates(recipe, params, streams, device), 1):
            losses.append(loss)
            if step % recipe.measure_every == 0 or step == recipe.num_steps:
                found = measure_sources(params, tokenizer, {name: sources[name] for name in streams})
                held_out.append({"step": step, **found})
                if (mean := sum(found.values()) / len(found)) < best:
                    best, kept = mean, on_device(params, torch.device("cpu"))
                rate = step * recipe.rows_per_step * recipe.row_length / (time.perf_counter() - started)
                shown = ", ".join(f"{name} {value:.3f}" for name, value in found.items())
                print(f"step {step} loss {loss:.3f}, held out {shown}; {rate:,.0f} tokens/s", flush=True)
    return Trained(kept, [float(loss) for loss in losses], held_out)


def measure_sources(params: ModelParams, tokenizer: Tokenizer, sources: Mapping[str, Corpus]) -> dict[str, float]:
    """Measure held-out text, source by source, in bits per byte."""
    return {
        name: bits_per_byte(params, lambda text: tokenizer.encode(text).ids, corpus.held_out)
        for name, corpus in sorted(sources.items())
    }


def _updates(
    recipe: Recipe, params: ModelParams, streams: Mapping[str, Stream], device: torch.device
) -> Iterator[Tensor]:
    """Update the weights step by step; yields each step's loss, left on the device so that nothing waits for it."""
    weights = list(trainable(params).values())
    optimizer = torch.optim.AdamW(
        [
            {"params": [weight for weight in weights if weight.dim() > 1], "weight_decay": recipe.weight_decay},
            {"params": [weight for weight in weights if weight.dim() == 1], "weight_decay": 0.0},
        ],
        lr=recipe.peak_rate,
        betas=(0.9, 0.95),
        fused=device.type == "cuda",
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate_of(recipe))
    generator = torch.Generator().manual_seed(recipe.seed)
    for _ in range(recipe.num_steps):
        rows = draw_rows(streams, recipe.shares, recipe.rows_per_step, recipe.row_length, generator).to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = dense_logits(params, rows[:, :-1], dropout=recipe.dropout)
        loss = F.cross_entropy(logits.flatten(0, 1).to(torch.float32), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, recipe.max_gradient_norm)
        optimizer.step()
        schedule.step()
        yield loss.detach()


def rate_of(recipe: Recipe) -> Callable[[int], float]:
    """Give each update's share of the peak rate."""

    def share(step: int) -> float:
        if step < recipe.num_warmup_steps:
            return (step + 1) / recipe.num_warmup_steps
        done = (step - recipe.num_warmup_steps) / max(1, recipe.num_steps - recipe.num_warmup_steps)
        return (1 + math.cos(math.pi * min(1.0, done))) / 2

    return share


@contextmanager
def _repeatable(seed: int, device: torch.device) -> Iterator[None]:
    """Seed dropout and ask for deterministic algorithms; on a GPU one that has none only warns."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic
    fills = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=device.type == "cuda")
    memory.fill_uninitialized_memory = False  # each new tensor would be written twice
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])
            memory.fill_uninitialized_memory = fills


def save(folder: Path, recipe: Recipe, trained: Trained, tokenizer: Tokenizer, facts: Mapping[str, Any]) -> None:
    """Write the checkpoint and the course of the training."""
    model = folder / "model"
    model.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(model / "tokenizer.json"))
    vocabulary = tokenizer.get_vocab()
    save_folder(model, trained.params, {token: vocabulary[token] for token in SPECIAL_TOKENS})
    course = {"recipe": asdict(recipe), **facts, "losses": trained.losses, "held_out": trained.held_out}
    (folder / "training.json").write_text(json.dumps(course) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and write the folder."""
    parser = argparse.ArgumentParser(description="Train the embedded model.")
    parser.add_argument("folder", type=Path, help="where the checkpoint goes")
    parser.add_argument("--texts", type=Path, required=True, help="what `python -m nanofn.embedded.corpora` made")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=Recipe().num_steps, help="number of updates")
    parser.add_argument("--rows", type=int, default=Recipe().rows_per_step, help="rows of 1,024 tokens in an update")
    parser.add_argument("--seed", type=int, default=Recipe().seed)
    parser.add_argument("--generated", type=int, default=Recipe().num_generated, help="number of generated texts")
    given = parser.parse_args(arguments)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it, products on a GPU do not repeat
    recipe = evolve(
        Recipe(), num_steps=given.steps, rows_per_step=given.rows, seed=given.seed, num_generated=given.generated
    )
    device, started = torch.device(given.device), time.perf_counter()
    sources = all_sources(read_corpora(given.texts), recipe.seed, recipe.num_generated)
    tokenizer = make_tokenizer(recipe, sources, CONFIG.vocab_size)
    print(f"texts and vocabulary: {time.perf_counter() - started:.0f} s", flush=True)
    trained = train(recipe, CONFIG, tokenizer, sources, device)
    facts = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "torch": torch.__version__,
        "seconds": round(time.perf_counter() - started, 1),
        "num_parameters": sum(weight.numel() for weight in trainable(trained.params).values()),
    }
    save(given.folder, recipe, trained, tokenizer, facts)


if __name__ == "__main__":
    main()
