"""What an engine's start asks to be compiled: all that its steps need, and not one kernel more than was counted.

Run as a program, in a process without TRITON_INTERPRET, it prints one JSON line for each set of limits.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import torch
from attrs import evolve

TESTS = Path(__file__).resolve().parents[1]

COUNTED = {"256 sequences": 61, "200 sequences": 60}
"""Each takes a quarter to one and a half seconds of a processor. Three are products' own launches at 65 to 128
rows, one is decode's at 256."""


def test_a_start_asks_for_every_kernel_and_few() -> None:
    """Sizes that are passed over need none of their own, at Qwen3-0.6B's sizes."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(part for part in (str(TESTS), environment.get("PYTHONPATH")) if part)
    done = subprocess.run(
        [sys.executable, "-m", "ops.test_start_kernels"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = {each["case"]: each for each in map(json.loads, done.stdout.splitlines())}
    assert set(found) == set(COUNTED)
    for case, number in COUNTED.items():
        assert not found[case]["missed"], case
        assert sum(found[case]["kernels"].values()) <= number, (case, found[case]["kernels"])


def main() -> None:
    """Go through a start's steps without a GPU and without compiling, once as it does and once at every size."""
    from nanofn.config import Limits
    from nanofn.device import precompile
    from nanofn.device.decode_graphs import bucket_sizes
    from nanofn_kernels import _dispatch, linear, linear_held, linear_library
    from ops import offline

    # The ops take the way of the interpreter, which is theirs on a CPU, to launches that are the GPU's.
    _dispatch.INTERPRETED = True
    linear_held.fits = lambda *_: True
    product = linear_library.library_product
    linear.library_product = lambda *arguments: product(*arguments) if arguments[-1] else None

    whole = Limits(block_size=64, num_blocks=64, max_num_seqs=256, max_num_batched_tokens=16384, max_model_len=4096)
    for case, limits in (
        ("256 sequences", whole),
        ("200 sequences", evolve(whole, max_num_seqs=200, max_model_len=3000)),
    ):
        found = []
        for sizes in (precompile.telling_sizes, bucket_sizes):
            precompile.telling_sizes = sizes
            with offline.requesting() as requested:
                precompile.request_kernels(params(), limits, torch.device("cpu"))
            found.append(requested)
        kernels = Counter(name for name, _ in found[0])
        print(json.dumps({"case": case, "kernels": kernels, "missed": sorted(found[1] - found[0])}), flush=True)


def params() -> object:
    """One layer of Qwen3-0.6B in bfloat16, of zeros."""
    from nanofn.model.config import from_dict
    from nanofn.model.params import LayerParams, ModelParams
    from nanofn.model.rope import make_rope

    hidden, heads, kv_heads, width, intermediate, vocab = 1024, 16, 8, 128, 3072, 151_936
    config = from_dict(
        {
            "model_type": "qwen3",
            "architectures": ["Qwen3ForCausalLM"],
            "hidden_size": hidden,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": width,
            "intermediate_size": intermediate,
            "vocab_size": vocab,
            "num_hidden_layers": 1,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "max_position_embeddings": 40_960,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e6,
            "hidden_act": "silu",
            "attention_bias": False,
        }
    )

    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.bfloat16)

    embedding = zeros(vocab, hidden)
    layer = LayerParams(
        input_norm=zeros(hidden),
        qkv_weight=zeros((heads + 2 * kv_heads) * width, hidden),
        q_norm=zeros(width),
        k_norm=zeros(width),
        output_weight=zeros(hidden, heads * width),
        mlp_norm=zeros(hidden),
        gate_up_weight=zeros(2 * intermediate, hidden),
        down_weight=zeros(hidden, intermediate),
    )
    return ModelParams(
        config=config,
        embedding=embedding,
        layers=(layer,),
        final_norm=zeros(hidden),
        head=embedding,
        rope=make_rope(config),
    )


if __name__ == "__main__":
    main()
