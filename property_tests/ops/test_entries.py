"""What entries mean on the device, against the references of the ops."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from nanofn_kernels import entries as ops
from nanofn_kernels.errors import DtypeError, ShapeError
from nanofn_kernels.reference import entries as reference
from ops.paged import DEVICE

NUM_ROWS, MAX_TOKENS, HIDDEN, VOCAB = 6, 40, 24, 50


@st.composite
def works(draw):
    """Tables, and entries over some rows in any order, with padding and new blocks."""
    block_size = draw(st.sampled_from([1, 4, 16]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    rows = draw(st.permutations(range(NUM_ROWS)))[: draw(st.integers(0, NUM_ROWS))]
    columns = []
    for row in rows:
        position = draw(st.integers(0, MAX_TOKENS - 1))
        grows = draw(st.booleans())
        columns.append(
            (row, position, position // block_size if grows else -1, draw(st.integers(0, 99)), draw(st.integers(0, 1)))
        )
    columns += [(-1, draw(st.integers(0, 1000)), -1, 0, 1)] * draw(st.integers(0 if rows else 1, 2))
    entries = torch.tensor(columns, dtype=torch.int32).T.contiguous()
    tokens = torch.randint(0, VOCAB, (NUM_ROWS, MAX_TOKENS + 1), generator=generator)
    table = torch.randint(0, 99, (NUM_ROWS, -(-MAX_TOKENS // block_size)), generator=generator, dtype=torch.int32)
    embedding = torch.randn(VOCAB, HIDDEN, generator=generator)
    return [part.to(DEVICE) for part in (entries, tokens, table, embedding)], block_size


@settings(max_examples=40)
@given(work=works())
def test_inputs_equal_the_references(work) -> None:
    """Every output, and the block table afterwards."""
    (entries, tokens, table, embedding), block_size = work
    mine, theirs = table.clone(), table.clone()
    found = ops.decode_inputs(entries, tokens, mine, embedding, block_size)
    expected = reference.decode_inputs(entries, tokens, theirs, embedding, block_size)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert torch.equal(mine, theirs)


@settings(max_examples=20)
@given(work=works(), seed=st.integers(0, 1000))
def test_sampling_and_storing_equal_the_references(work, seed) -> None:
    """Parameters where an entry is real, tokens where one samples; nothing else is written."""
    (entries, tokens, _, _), _ = work
    generator = torch.Generator().manual_seed(seed)
    floats = [torch.rand(NUM_ROWS, generator=generator) for _ in range(3)]
    integers = [torch.randint(-(2**62), 2**62, (NUM_ROWS,), generator=generator) for _ in range(3)]
    tables = [each.to(DEVICE) for each in (floats[0], *integers, floats[1], floats[2])]
    real = entries[0] >= 0
    for a, b in zip(ops.sampling_inputs(entries, *tables), reference.sampling_inputs(entries, *tables), strict=True):
        assert torch.equal(a[real], b[real])
    assert not ops.sampling_inputs(entries, *tables)[4][~real].any()
    count = entries.shape[1]
    token_ids = torch.randint(0, VOCAB, (count,), generator=generator, dtype=torch.int32).to(DEVICE)
    undefined = (torch.rand(count, generator=generator) < 0.3).to(DEVICE)
    results = []
    for make in (ops.store_tokens, reference.store_tokens):
        after, output = tokens.clone(), torch.zeros(count, dtype=torch.int32, device=DEVICE)
        make(entries, token_ids, undefined, after, output)
        results.append((after, output))
    assert torch.equal(results[0][0], results[1][0])
    samples = real & (entries[4] > 0)
    assert torch.equal(results[0][1][samples], results[1][1][samples])


@settings(max_examples=40)
@given(
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=NUM_ROWS),
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    block_size=st.sampled_from([1, 4, 16]),
    seed=st.integers(0, 1000),
)
def test_chunks_tokens_are_found_as_the_reference_finds_them(counts, padding, block_size, seed) -> None:
    """Each token's hidden state, position and slot; padding chunks and padding tokens are nothing."""
    generator = torch.Generator().manual_seed(seed)
    starts = [sum(counts[:place]) for place in range(len(counts) + 1)]
    rows = torch.randperm(NUM_ROWS, generator=generator)[: len(counts)].tolist()
    seq_lens = [count + int(torch.randint(0, 30, (1,), generator=generator)) for count in counts]
    more_chunks, more_tokens = padding
    columns = [*zip(rows, starts, seq_lens, strict=False), *[(-1, starts[-1], 0)] * (1 + more_chunks)]
    chunks = torch.tensor(columns, dtype=torch.int32).T.contiguous().to(DEVICE)
    tokens = torch.randint(0, VOCAB, (NUM_ROWS, MAX_TOKENS + 1), generator=generator).to(DEVICE)
    shape = NUM_ROWS, -(-MAX_TOKENS // block_size)
    table = torch.randint(0, 99, shape, generator=generator, dtype=torch.int32).to(DEVICE)
    embedding = torch.randn(VOCAB, HIDDEN, generator=generator).to(DEVICE)
    arguments = chunks, tokens, table, embedding, block_size, starts[-1] + more_tokens
    found, expected = ops.prefill_inputs(*arguments), reference.prefill_inputs(*arguments)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    place = 0
    for row, count, seq_len in zip(rows, counts, seq_lens, strict=True):
        for position in range(seq_len - count, seq_len):
            slot = int(table[row, position // block_size]) * block_size + position % block_size
            assert (int(found[1][place]), int(found[2][place])) == (position, slot)
            assert torch.equal(found[0][place], embedding[tokens[row, position]])
            place += 1
    assert (found[2][place:] == -1).all()


def test_arguments_that_do_not_fit_are_named() -> None:
    """Wrong shapes and types."""
    entries = torch.zeros((4, 3), dtype=torch.int32)
    with pytest.raises(ShapeError, match="entries"):
        ops.decode_inputs(entries, torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2, 3), 4)
    with pytest.raises(DtypeError, match="tokens"):
        ops.decode_inputs(
            torch.zeros((5, 3), dtype=torch.int32), torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2, 3), 4
        )
