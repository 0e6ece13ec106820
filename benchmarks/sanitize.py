"""Every kernel on small inputs that reach its branches, each result against its reference: what compute-sanitizer watches.

python benchmarks/sanitize.py [--apart] [NAME ...]     # --apart: each in a process of its own, to compile side by side

With PYTORCH_NO_CUDA_MEMORY_CACHING=1 each tensor is an allocation of its own, which ends where its last element does, so
that an access outside is found. References run on the host: the tool has little to watch but our kernels.
"""

import argparse
import copy
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "kernels"), str(ROOT / "property_tests")]

from nanofn_kernels import entries as entry_ops
from nanofn_kernels._dispatch import INTERPRETED
from nanofn_kernels.adjust import BLOCK as ADJUST_BLOCK, adjust_logits
from nanofn_kernels.chunk_sums import CHUNK, CHUNKS_A_PROGRAM, chunk_sums
from nanofn_kernels.decode_launch import Launch, choose_launch, decode_split_size
from nanofn_kernels.linear import launch_linear, linear, linear_norm
from nanofn_kernels.linear_held import HeldLaunch, fits
from nanofn_kernels.linear_plan import FEW, LIBRARY, MANY, MEDIUM, ROW, Launch as LinearLaunch, tile_launch
from nanofn_kernels.norm_rope_store import norm_rope_store
from nanofn_kernels.paged_decode import launch_paged_decode
from nanofn_kernels.paged_prefill import paged_prefill
from nanofn_kernels.reference import entries as entry_references
from nanofn_kernels.reference.adjust import adjust_logits as adjust_reference
from nanofn_kernels.reference.chunk_sums import chunk_sums as chunk_reference
from nanofn_kernels.reference.linear import rms_norm
from nanofn_kernels.reference.norm_rope_store import norm_rope_store as store_reference
from nanofn_kernels.reference.paged_prefill import paged_prefill as prefill_reference
from nanofn_kernels.reference.sample import sample as sample_reference
from nanofn_kernels.reference.work_list import work_list as work_reference
from nanofn_kernels.sample import sample
from nanofn_kernels.work_list import NO_SPLIT, max_item_blocks, max_items, work_list
from ops import test_linear, test_norm_rope_store
from ops.paged import DEVICE, TOLERANCE, Sequences, error, make_work
from ops.test_adjust import KINDS, Work
from ops.test_paged_decode import exact as exact_decode
from ops.test_paged_prefill import bounds_of
from ops.test_sample import Rows, filters

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32


def alone(tensor: Tensor) -> Tensor:
    """The same numbers with nothing between the rows or behind them."""
    return tensor.clone(memory_format=torch.contiguous_format)


def on_host(value: Any) -> Any:
    """A copy on the CPU: of a tensor, of those in a list, tuple or dictionary, or of an object's."""
    if isinstance(value, Tensor):
        return value.to("cpu", copy=True)
    if isinstance(value, list | tuple):
        return type(value)(on_host(part) for part in value)
    if isinstance(value, dict):
        return {key: on_host(part) for key, part in value.items()}
    if isinstance(value, Sequences | test_linear.Case | test_norm_rope_store.Case):
        found = copy.copy(value)
        vars(found).update(on_host(vars(value)))
        return found
    return value


def assert_same(found: Any, expected: Any) -> None:
    """Every tensor is the expected one, bit for bit."""
    assert all(torch.equal(mine, other) for mine, other in zip(on_host(found), on_host(expected), strict=True))


def ints(*sizes: int, below: int = 50, dtype: torch.dtype = torch.int32) -> Tensor:
    """Random numbers, made on the host."""
    return torch.randint(0, below, sizes, dtype=dtype).to(DEVICE)


def run_work_list() -> None:
    """One item a sequence and many, blocks of a token and of 64, an entry of no length."""
    for lengths, split, block_size, kv_heads in (
        ([0, 1, 65, 1025], 64, 16, 2),
        ([70, 0], NO_SPLIT, 1, 8),
        ([64, 2100, 130], 256, 64, 8),
    ):
        seq_lens = torch.tensor(lengths, dtype=torch.int32).to(DEVICE)
        entries, longest = len(lengths), max(lengths)
        table = ints(entries, -(-longest // block_size))
        rows = torch.arange(entries, dtype=torch.int32).flip(0).to(DEVICE)
        tokens = table.shape[1] * block_size
        items = max_items(entries, tokens, split, kv_heads)
        sizes = (items, 8), (items, max_item_blocks(tokens, split, block_size, kv_heads)), (1,)
        mine = [torch.zeros(size, dtype=torch.int32).to(DEVICE) for size in sizes]
        given, theirs = (table, rows, seq_lens, split, block_size, kv_heads), on_host(mine)
        work_list(*given, *mine)
        work_reference(*on_host(given), *theirs)
        assert_same(mine, theirs)


def launches(powers: range) -> list[Launch]:
    """What the table has for 2 to such powers sequences and K/V heads: it changes at powers of two."""
    return list(dict.fromkeys(choose_launch(2**power, 1, 128, 2, fixed_tile=False) for power in powers))


def run_paged_decode() -> None:
    """The rule's split, a constant one and none; every shape of `decode_launch`; padding."""
    split_launches, whole_launches = launches(range(7)), launches(range(7, 14))
    for group, head_dim, block_size, dtype, split, launch in (
        (1, 128, 16, BF16, 64, None),
        (2, 128, 64, BF16, 0, None),
        (4, 128, 16, F16, NO_SPLIT, None),
        (2, 128, 64, BF16, 128, None),
        *((2, 128, 64, BF16, NO_SPLIT, launch) for launch in whole_launches),
        (1, 128, 16, BF16, NO_SPLIT, whole_launches[-1]),
        *((2, 128, size, BF16, 64, launch) for launch in split_launches for size in (8, 16)),
        (4, 64, 64, F32, 64, None),
        (2, 192, 16, BF16, 64, None),
    ):
        sequences = Sequences([0, 1, 65, 150], kv_heads=2, head_dim=head_dim, block_size=block_size, dtype=dtype)
        query = sequences.queries(4, 2 * group)
        expected = exact_decode(on_host(sequences), query.cpu())
        work = make_work(
            sequences.table, sequences.rows, sequences.seq_lens, split or decode_split_size(4, 2), block_size, 2 * group, 2, head_dim
        )  # fmt: skip
        for launch_pdl in (False, not INTERPRETED):
            found = launch_paged_decode(
                query, sequences.k_cache, sequences.v_cache, sequences.table.shape[1], *work, head_dim**-0.5, split,
                launch_pdl=launch_pdl, launch=launch,
            )  # fmt: skip
            assert error(found.cpu(), expected) < TOLERANCE[dtype]
            assert not work[-1].cpu().any()  # the counters are zeros again


def run_paged_prefill() -> None:
    """Two sequences, the first with a cached prefix, and padding behind them."""
    for group, head_dim, block_size, dtype, launch_pdl in (
        (1, 128, 64, BF16, False),
        (2, 128, 16, F16, True),
        (4, 64, 64, BF16, True),
        (2, 64, 16, F32, False),
    ):
        sequences = Sequences([110, 33], kv_heads=1, head_dim=head_dim, block_size=block_size, dtype=dtype)
        query = sequences.queries(70 + 33 + 3, group)
        tensors = query, sequences.k_cache, sequences.v_cache
        rest = sequences.table, sequences.rows, bounds_of([70, 33]), sequences.seq_lens, head_dim**-0.5
        found = paged_prefill(*tensors, *rest, launch_pdl=launch_pdl and not INTERPRETED)
        expected = prefill_reference(*(tensor.cpu().double() for tensor in tensors), *on_host(rest))
        assert error(found.cpu(), expected) < TOLERANCE[dtype]
        assert not found[103:].cpu().any()


def run_norm_rope_store() -> None:
    """Tokens with and without norms and scales, one of them padding."""
    for heads, head_dim, block_size, dtype, norm, launch_pdl in (
        (4, 128, 64, BF16, True, False),
        (2, 128, 16, F16, True, True),
        (4, 64, 16, F32, False, True),
    ):
        case = test_norm_rope_store.Case(5, heads, 2, head_dim, block_size, dtype, norm=norm)
        case.qkv = alone(case.qkv)
        case.slots[2], case.positions[2] = -1, -(2**30)
        scales = (2.0, 4.0) if norm else (1.0, 1.0)
        op = partial(norm_rope_store, launch_pdl=launch_pdl and not INTERPRETED)
        found = case.run(op, scales=scales)
        expected = on_host(case).run(store_reference, scales=scales, exact=True)
        for mine, other in zip(on_host(found), expected, strict=True):
            assert torch.equal(mine.isnan(), other.isnan())
            assert error(mine.nan_to_num(0), other.nan_to_num(0)) < TOLERANCE[dtype]


def run_entries() -> None:
    """What steps read and write: padding, new blocks, entries that do not sample, padding chunks and tokens."""
    num_rows, columns, block_size = 6, 40, 16
    entries = torch.tensor(
        [(4, 17, -1, 3, 1), (0, 32, 2, 9, 1), (5, 39, -1, 0, 0), (-1, 900, -1, 0, 1)], dtype=torch.int32
    ).T.contiguous().to(DEVICE)  # fmt: skip
    chunks = torch.tensor([(3, 0, 21), (1, 5, 2), (-1, 7, 0), (-1, 7, 0)], dtype=torch.int32).T.contiguous().to(DEVICE)
    tokens, table = ints(num_rows, columns + 1, dtype=torch.int64), ints(num_rows, -(-columns // block_size))
    embedding = torch.randn(50, 24).to(DEVICE)
    mine, theirs = (tokens, table, embedding, block_size), on_host((tokens, table, embedding, block_size))
    found = entry_ops.prefill_inputs(chunks, *mine, 9)
    assert_same(found, entry_references.prefill_inputs(chunks.cpu(), *theirs, 9))
    assert_same(entry_ops.decode_inputs(entries, *mine), entry_references.decode_inputs(entries.cpu(), *theirs))
    assert_same([table], [theirs[1]])
    floats = [torch.rand(num_rows).to(DEVICE) for _ in range(3)]
    given = floats[0], *(ints(num_rows, dtype=torch.int64) for _ in range(3)), *floats[1:]
    expected = entry_references.sampling_inputs(entries.cpu(), *on_host(given))
    for a, b in zip(entry_ops.sampling_inputs(entries, *given), expected, strict=True):
        assert torch.equal(a.cpu()[:3], b[:3])
    chosen, undefined = ints(4), torch.tensor([False, True, False, False]).to(DEVICE)
    outputs = torch.zeros(4, dtype=torch.int32).to(DEVICE)
    host_outputs = on_host(outputs)
    entry_ops.store_tokens(entries, chosen, undefined, tokens, outputs)
    entry_references.store_tokens(entries.cpu(), chosen.cpu(), undefined.cpu(), theirs[0], host_outputs)
    assert_same([tokens, outputs[:2]], [theirs[0], host_outputs[:2]])


def run_chunk_sums() -> None:
    """A part of a chunk, whole ones, and more than a program does; a chunk of nothing but -inf."""
    for vocab_size in (CHUNK - 1, CHUNK, CHUNK * CHUNKS_A_PROGRAM + 7):
        logits = torch.randn(2, vocab_size)
        logits[0, :CHUNK] = -torch.inf
        logits, token_ids = logits.bfloat16().to(DEVICE), ints(2, below=vocab_size, dtype=torch.int64)
        found, expected = on_host(chunk_sums(logits, token_ids)), chunk_reference(logits.cpu(), token_ids.cpu())
        assert_same(found[::2], expected[::2])
        torch.testing.assert_close(found[1], expected[1], rtol=1e-6, atol=0)


def run_adjust() -> None:
    """Everything that a row may ask for, alone and together, masks, and padding."""
    for vocab_size, dtype, kinds in (
        (2 * ADJUST_BLOCK + 5, BF16, [KINDS[-1], KINDS[1], 0]),
        (ADJUST_BLOCK, F32, KINDS[2:6]),
    ):
        for is_masked in (False, True):
            work = Work(vocab_size, dtype, kinds, seed=1, is_masked=is_masked)
            work.tensors[1][-1] = -1
            tensors = [alone(tensor) for tensor in work.tensors]
            if is_masked:
                tensors[8] = alone(tensors[8][:, : -(-vocab_size // 32)])
            found, expected = adjust_logits(*tensors).cpu(), adjust_reference(*on_host(tensors))
            assert torch.equal(found == -torch.inf, expected == -torch.inf)
            torch.testing.assert_close(found, expected, rtol=3e-7, atol=2e-5)  # as in the tests


def run_sample() -> None:
    """Greedy and sampled rows, padding, a row without a distribution; filters that keep few and many ids, alone and together.

    Flat rows have the end of top-p sought in a window, and with min-p alone only their largest logit.
    """
    for vocab_size, dtype, spread, k, p, m in (
        (2049, F32, 3.0, None, None, None),
        (9000, BF16, 3.0, [50, 0, 1], None, None),
        (8300, BF16, 3.0, [2500], None, None),
        (8300, BF16, 0.0, [3000], None, None),
        (9000, BF16, 4.0, None, [0.9, 1.0, 0.0], None),
        (8300, BF16, 0.3, None, [0.999], None),
        (8300, F16, 1.0, None, None, [0.3, 0.0, 1.0]),
        (8300, BF16, 0.3, None, None, [0.001, 0.0, 1.0]),
        (9000, BF16, 3.0, [2500, 20], [0.9, 0.3], [0.0, 0.05]),
    ):
        rows = Rows(5, vocab_size, dtype, spread=spread)
        rows.logits = alone(rows.logits)
        rows.temperature[2] = 0.0
        rows.logits[3:] = torch.tensor([[torch.nan], [-torch.inf]])
        options = filters(5, k, p, m) | {"is_valid": torch.tensor([True, True, True, False, True]).to(DEVICE)}
        ids, is_undefined = on_host(sample(*rows.arguments(), **options))
        expected, expected_undefined = sample_reference(*on_host(rows.arguments()), **on_host(options))
        # Sums that differ in their last bits may move the end of top-p: as in the tests.
        assert (ids != expected).sum() <= (p is not None)
        assert torch.equal(is_undefined, expected_undefined)


def products() -> list[tuple[int, int, bool, torch.dtype, LinearLaunch]]:
    """Rows, columns, whether gated, type and launch: each launch of the tables, on few outputs; the other kernels."""
    found: list[tuple[int, int, bool, torch.dtype, LinearLaunch]] = [
        (1, wide, is_gated, BF16, launch) for (wide, _, is_gated), launch in ROW.items() if wide <= 3072
    ]
    found += [(5, wide, is_gated, BF16, launch) for (wide, _, is_gated), launch in FEW.items()]
    found += [(70, wide, is_gated, BF16, launch) for (wide, _, is_gated), launch in MEDIUM.items()]
    for (wide, _, is_gated), launch in MANY.items():
        found.append((200 if launch.splits == 1 else 70, wide, is_gated, BF16, launch))
    for num_rows, wide, is_gated, dtype in ((5, 130, True, BF16), (70, 200, False, F16), (5, 1024, False, F32)):
        found.append((num_rows, wide, is_gated, dtype, tile_launch(num_rows, wide, OUTPUTS, is_gated, dtype)))
    return found + [(5, 256, is_gated, BF16, LIBRARY) for is_gated in (False, True)]


OUTPUTS = 80
"""Results of a product: a program and a quarter of one that does 64, whose kernel is that of the whole weight."""


def run_linear() -> None:
    """The launches of `products`, norms and epilogues around them, then what the op chooses, with the norm ahead."""
    for num_rows, wide, is_gated, dtype, wanted in products():
        is_library = wanted == LIBRARY
        outputs = OUTPUTS + 3 * (num_rows == 1)  # fewer than the last program does there too
        case = test_linear.Case(num_rows, wide, outputs, dtype, is_gated=is_gated, bias=not is_library)
        case.x, case.weight = alone(case.x), alone(case.weight)
        case.options["residual"] = None if is_library and is_gated else alone(case.options["residual"])
        runs_here = not isinstance(wanted, HeldLaunch) or fits(case.x, case.weight, wanted)  # not without a Hopper GPU
        launch = wanted if runs_here else tile_launch(num_rows, wide, OUTPUTS, is_gated, dtype)
        found, _ = launch_linear(case.x, case.weight, launch=launch, launch_pdl=True, **case.options)
        assert error(found.cpu(), on_host(case).exact()) < test_linear.TOLERANCE[dtype]
    for num_rows, batch_invariant in ((1, False), (1, True), (5, True), (70, False)):
        first = test_linear.Case(num_rows, 512, 256, BF16, norm=False)
        second = test_linear.Case(num_rows, 256, 48, BF16, bias=False)
        for case in (first, second):
            case.x, case.weight = alone(case.x), alone(case.weight)
        norm_weight, how = second.options["norm_weight"], {"batch_invariant": batch_invariant, "launch_pdl": True}
        given = {name: first.options[name] for name in ("bias", "residual")}
        hidden, normed = linear_norm(first.x, first.weight, norm_weight, **given, **how)
        assert error(hidden.cpu(), on_host(first).exact()) < test_linear.TOLERANCE[BF16]
        second.x = hidden
        found = linear(hidden, second.weight, normed=normed, **second.options, **how)
        assert error(found.cpu(), on_host(second).exact()) < test_linear.TOLERANCE[BF16]
        if num_rows > 1:
            expected = rms_norm(hidden.cpu(), norm_weight.cpu(), 1e-6)
            assert error(normed.cpu(), expected) < test_linear.TOLERANCE[BF16]


KERNELS = {
    "work_list": run_work_list,
    "entries": run_entries,
    "chunk_sums": run_chunk_sums,
    "norm_rope_store": run_norm_rope_store,
    "adjust": run_adjust,
    "sample": run_sample,
    "paged_decode": run_paged_decode,
    "paged_prefill": run_paged_prefill,
    "linear": run_linear,
}
"""Last the one whose copies by the tensor memory accelerator a tool may not know."""


def main(arguments: list[str]) -> None:
    """Run the named kernels, or all; say of each that it was right, or fail."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(KERNELS))
    parser.add_argument("--apart", action="store_true")
    options = parser.parse_args(arguments)
    names = options.names or list(KERNELS)
    if unknown := set(names) - set(KERNELS):
        parser.error(f"there is no kernel {', '.join(sorted(unknown))}")
    if options.apart:
        # A thread each for the references: those of all would wait for each other, and spin, beside the compilers.
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        running = [subprocess.Popen([sys.executable, __file__, name], env=environment) for name in names]
        statuses = [process.wait() for process in running]
        if any(statuses):
            raise SystemExit("a kernel was wrong")
        return
    for name in names:
        torch.manual_seed(0)
        KERNELS[name]()
        print(f"{name}: right", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
