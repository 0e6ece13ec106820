"""Small-batch products: microseconds a product and a layer inside CUDA graphs with a cold L2, against the library's.

python benchmarks/bench_linear.py OUT.jsonl

A layer is a true chain: each product reads what the one before wrote. The library's layer has a kernel for each norm and
each gate between its products; its products alone are timed too, one after another on rotating weights.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
sys.path += [str(ROOT / "benchmarks"), str(ROOT / "kernels")]

import gpu
from nanofn_kernels.linear import choose, launch_linear, linear, linear_norm
from nanofn_kernels.linear_plan import LIBRARY
from nanofn_kernels.reference import linear as reference

DTYPE = torch.bfloat16
MODELS = {
    "Qwen3-0.6B": {"hidden": 1024, "query": 2048, "qkv": 4096, "intermediate": 3072, "layers": 12},
    "Qwen3-8B": {"hidden": 4096, "query": 4096, "qkv": 6144, "intermediate": 12288, "layers": 3},
}
BATCHES = (1, 4, 16, 64, 128, 256)


class Layer:
    """Weights of a few layers and the buffers that flow through them."""

    def __init__(self, name: str, num_rows: int) -> None:
        sizes = MODELS[name]
        hidden, self.query, wide = sizes["hidden"], sizes["query"], sizes["intermediate"]
        shapes = {
            "qkv": (sizes["qkv"], hidden),
            "out": (hidden, self.query),
            "up": (2 * wide, hidden),
            "down": (hidden, wide),
        }
        generator = torch.Generator("cuda").manual_seed(1)

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, device="cuda", dtype=DTYPE, generator=generator)

        self.count = sizes["layers"]
        self.weights = [
            {key: random(*shape) * shape[1] ** -0.5 for key, shape in shapes.items()} for _ in range(self.count)
        ]
        self.norms = [1 + 0.1 * random(2, hidden) for _ in range(self.count + 1)]
        self.x = random(num_rows, hidden)
        self.inputs = {"qkv": self.x, "out": random(num_rows, self.query), "up": self.x, "down": random(num_rows, wide)}

    def ours(self, index: int, hidden: Tensor, normed: Tensor | None, batch_invariant: bool) -> tuple[Tensor, Tensor]:
        """Run one layer's products, attention left out: its input stands for its output."""
        weights, norm = self.weights[index % self.count], self.norms[index % self.count]
        following = self.norms[(index + 1) % self.count][0]
        options = {"batch_invariant": batch_invariant, "launch_pdl": True}
        qkv = linear(hidden, weights["qkv"], norm_weight=norm[0], normed=normed, **options)
        hidden, normed = linear_norm(qkv[:, : self.query], weights["out"], norm[1], residual=hidden, **options)
        gated = linear(hidden, weights["up"], norm_weight=norm[1], normed=normed, is_gated=True, **options)
        return linear_norm(gated, weights["down"], following, residual=hidden, **options)

    def library(self, index: int, hidden: Tensor) -> Tensor:
        """Run the same with the library's products, each norm and gate a kernel of its own."""
        weights, norms = self.weights[index % self.count], self.norms[index % self.count]
        qkv, _ = launch_linear(hidden, weights["qkv"], launch=LIBRARY, norm_weight=norms[0])
        hidden, _ = launch_linear(qkv[:, : self.query], weights["out"], launch=LIBRARY, residual=hidden)
        gated, _ = launch_linear(hidden, weights["up"], launch=LIBRARY, norm_weight=norms[1], is_gated=True)
        return launch_linear(gated, weights["down"], launch=LIBRARY, residual=hidden)[0]

    def exact(self, batch_invariant: bool) -> float:
        """Run layer 0 and return its relative error against products in float32."""
        mine, _ = self.ours(0, self.x, None, batch_invariant)
        weights, norm = self.weights[0], self.norms[0]
        qkv = reference.linear(self.x, weights["qkv"], norm_weight=norm[0])
        hidden = reference.linear(qkv[:, : self.query], weights["out"], residual=self.x)
        gated = reference.linear(hidden, weights["up"], norm_weight=norm[1], is_gated=True)
        theirs = reference.linear(gated, weights["down"], residual=hidden).float()
        return ((mine.float() - theirs).norm() / theirs.norm()).item()


def chain(step: Callable[[int, tuple], tuple], start: tuple) -> Callable[[int], None]:
    """Make a timed function whose i-th call goes on from the one before, from the start at 0."""
    state = [start]

    def run(i: int) -> None:
        state[0] = step(i, start if i == 0 else state[0])

    return run


def bits(name: str, record: Callable[[dict], None]) -> None:
    """Compare a row's bits alone and in batches up to 256, for the batch-invariant path and the default one."""
    layer = Layer(name, 256)
    for batch_invariant in (True, False):
        whole, _ = layer.ours(0, layer.x, None, batch_invariant)
        found = {}
        for size in (1, 2, 16, 17, 64, 65, 255):
            part, _ = layer.ours(0, layer.x[:size], None, batch_invariant)
            found[size] = torch.equal(part, whole[:size])
        print(
            name, "batch_invariant" if batch_invariant else "default", "equal to the batch of 256:", found, flush=True
        )
        record(
            {
                "model": name,
                "subject": "bits",
                "batch_invariant": batch_invariant,
                "equal": {str(k): v for k, v in found.items()},
            }
        )


def main() -> None:
    """Measure, print a table and record it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    limits = gpu.ceilings()
    base = {"kernel": "linear", "dtype": "bfloat16", **gpu.environment(), **limits}
    print(limits)

    def record(line: dict) -> None:
        gpu.record(options.out, base | line)

    for name in MODELS:
        bits(name, record)
        for num_rows in BATCHES:
            layer = Layer(name, num_rows)
            bytes_read = sum(weight.numel() for weight in layer.weights[0].values()) * 2
            line = {"model": name, "rows": num_rows, "limit": bytes_read / limits["read_gb_per_s"] / 1e3}
            text = []
            for batch_invariant in (False, True):
                error = layer.exact(batch_invariant)

                def step(i: int, state: tuple) -> tuple:
                    return layer.ours(i, state[0], state[1], batch_invariant)

                found = gpu.time_graph(chain(step, (layer.x, None)), 2 * layer.count)
                kinds = {key: type(choose(layer.inputs[key], weight, is_gated=key == "up", batch_invariant=batch_invariant)).__name__ for key, weight in layer.weights[0].items()}  # fmt: skip
                record(
                    line
                    | {"subject": "layer", "batch_invariant": batch_invariant, "error": error, "kinds": kinds, **found}
                )
                text.append(f"{'invariant' if batch_invariant else 'ours'} {found['median']:.2f} ({error:.0e})")
            found = gpu.time_graph(chain(lambda i, state: (layer.library(i, state[0]),), (layer.x,)), 2 * layer.count)
            record(line | {"subject": "library layer", **found})
            text.append(f"library {found['median']:.2f}")
            total = 0.0
            for key in layer.inputs:
                found = gpu.time_graph(
                    lambda i: layer.inputs[key] @ layer.weights[i % layer.count][key].T, 2 * layer.count
                )
                record(line | {"subject": "library product", "product": key, **found})
                total += found["median"]
            text.append(f"its products alone {total:.2f}")
            print(f"{name} {num_rows:4} rows, limit {line['limit']:.1f} us:", ", ".join(text), flush=True)


if __name__ == "__main__":
    main()
