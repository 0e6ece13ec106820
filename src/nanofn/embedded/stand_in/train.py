"""The recipe of the stand-in: `python -m nanofn.embedded.stand_in.train FOLDER`, some eight minutes on one CPU core.

The same seed gives the same texts and the same vocabulary anywhere, and the same weights on the same kind of
processor with the same torch.
"""

import argparse
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from attrs import frozen
from tokenizers import Tokenizer
from torch import Tensor

from nanofn.embedded.dense import dense_logits, initial_params, trainable
from nanofn.embedded.markup import SPECIAL_TOKENS
from nanofn.embedded.save import save_folder
from nanofn.embedded.stand_in.conversations import documents
from nanofn.embedded.vocabulary import train_tokenizer
from nanofn.model.config import ModelConfig
from nanofn.model.params import ModelParams

CONFIG = ModelConfig(
    model_type="qwen3",
    vocab_size=1024,
    hidden_size=192,
    intermediate_size=512,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    rms_norm_eps=1e-6,
    rope_theta=10_000.0,
    max_position_embeddings=2048,
    tie_word_embeddings=True,
    has_qk_norm=True,
)
"""1,673,152 parameters."""


@frozen(kw_only=True)
class Recipe:
    """What decides the weights.

    Attributes:
        seed: Of texts and initial weights.
        num_vocab_documents: Texts that the vocabulary is made from.
        num_steps: Updates.
        rows_per_step: Rows of an update.
        row_length: Tokens of a row.
        peak_rate: Largest learning rate, after `num_warmup_steps`; from there it falls to 0.
        num_warmup_steps: Updates of a rising rate.
        weight_decay: Of matrices.
        max_gradient_norm: Longer gradients are shortened to it.
    """

    seed: int = 7
    num_vocab_documents: int = 4000
    num_steps: int = 1300
    rows_per_step: int = 8
    row_length: int = 192
    peak_rate: float = 3e-3
    num_warmup_steps: int = 50
    weight_decay: float = 0.1
    max_gradient_norm: float = 1.0


def make_tokenizer(recipe: Recipe, vocab_size: int) -> Tokenizer:
    """Make the vocabulary from texts of the next seed."""
    return train_tokenizer(islice(documents(recipe.seed + 1), recipe.num_vocab_documents), vocab_size)


def rows(recipe: Recipe, tokenizer: Tokenizer) -> Iterator[Tensor]:
    """Fill rows with whole texts; what does not fit the row's end is cut, so that every row starts a text."""
    row: list[int] = []
    for document in documents(recipe.seed):
        row += tokenizer.encode(document).ids
        if len(row) > recipe.row_length:
            yield torch.tensor(row[: recipe.row_length + 1])
            row = []


def train(recipe: Recipe, config: ModelConfig, tokenizer: Tokenizer) -> ModelParams:
    """Train on freshly written texts, so that no text is seen twice on purpose."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    params = initial_params(config, torch.Generator().manual_seed(recipe.seed))
    weights = trainable(params).values()
    optimizer = torch.optim.AdamW(
        [
            {"params": [weight for weight in weights if weight.dim() > 1], "weight_decay": recipe.weight_decay},
            {"params": [weight for weight in weights if weight.dim() == 1], "weight_decay": 0.0},
        ],
        lr=recipe.peak_rate,
        betas=(0.9, 0.95),
    )
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(recipe, step))
    source, started = rows(recipe, tokenizer), time.perf_counter()
    for step in range(recipe.num_steps):
        batch = torch.stack(list(islice(source, recipe.rows_per_step)))
        logits = dense_logits(params, batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, recipe.max_gradient_norm)
        optimizer.step()
        rate.step()
        if step % 50 == 49:
            print(f"step {step + 1} loss {loss.item():.3f} {time.perf_counter() - started:.0f} s", flush=True)
    return params


def _rate(recipe: Recipe, step: int) -> float:
    rising = (step + 1) / recipe.num_warmup_steps
    falling = (recipe.num_steps - step) / (recipe.num_steps - recipe.num_warmup_steps)
    return min(1.0, rising, falling)


def main() -> None:
    """Train, and write the folder."""
    parser = argparse.ArgumentParser(description="Train the stand-in.")
    parser.add_argument("folder", type=Path, help="where the checkpoint goes")
    parser.add_argument("--steps", type=int, default=Recipe().num_steps, help="number of updates")
    arguments = parser.parse_args()
    recipe = Recipe(num_steps=arguments.steps)
    tokenizer = make_tokenizer(recipe, CONFIG.vocab_size)
    params = train(recipe, CONFIG, tokenizer)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(arguments.folder / "tokenizer.json"))
    vocabulary = tokenizer.get_vocab()
    save_folder(arguments.folder, params, {token: vocabulary[token] for token in SPECIAL_TOKENS})


if __name__ == "__main__":
    main()
