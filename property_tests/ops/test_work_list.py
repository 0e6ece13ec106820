"""The work list against its reference, and what every list must satisfy."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from nanofn_kernels.errors import DtypeError, ShapeError
from nanofn_kernels.reference.work_list import work_list as reference
from nanofn_kernels.work_list import NO_SPLIT, max_item_blocks, max_items, max_splits, split_length, work_list
from ops.paged import DEVICE

LENGTHS = st.lists(
    st.integers(0, 200) | st.sampled_from([63, 64, 65, 1023, 1024, 1025, 4096, 20_000]), min_size=1, max_size=6
)


def listed(lengths: list[int], split: int, block_size: int, kv_heads: int, make=work_list):
    """Items, blocks and count of a batch, and its table."""
    columns = -(-max([1, *lengths]) // block_size)
    table = torch.arange(len(lengths) * columns, dtype=torch.int32).reshape(len(lengths), columns)
    rows = torch.arange(len(lengths), dtype=torch.int32).flip(0)
    number = max_items(len(lengths), columns * block_size, split, kv_heads)
    width = max_item_blocks(columns * block_size, split, block_size, kv_heads)
    out = [torch.zeros(size, dtype=torch.int32, device=DEVICE) for size in ((number, 8), (number, width), (1,))]
    make(
        table.to(DEVICE),
        rows.to(DEVICE),
        torch.tensor(lengths, dtype=torch.int32, device=DEVICE),
        split,
        block_size,
        kv_heads,
        *out,
    )
    return [part.cpu() for part in out], table, rows


@settings(max_examples=20)
@given(
    lengths=st.lists(
        st.integers(0, 140) | st.sampled_from([63, 64, 65, 1023, 1024, 1025, 2100]), min_size=1, max_size=4
    ),
    split=st.sampled_from([64, 256, NO_SPLIT]),
    block_size=st.sampled_from([16, 64, 256]),
    kv_heads=st.sampled_from([1, 4, 8]),
)
def test_it_equals_the_reference(lengths, split, block_size, kv_heads) -> None:
    """Item for item, in the same order."""
    for mine, expected in zip(
        listed(lengths, split, block_size, kv_heads)[0],
        listed(lengths, split, block_size, kv_heads, reference)[0],
        strict=True,
    ):
        assert torch.equal(mine, expected)


def test_items_of_shorter_sequences_may_touch_more_blocks() -> None:
    """7,000 tokens in 16 splits of 448 begin within blocks of 256, splits of 512 for the longest sequence do not."""
    for mine, expected in zip(
        listed([7000, 8192], 64, 256, 8)[0], listed([7000, 8192], 64, 256, 8, reference)[0], strict=True
    ):
        assert torch.equal(mine, expected)


@pytest.mark.parametrize("block_size", [1, 5, 16, 24, 64, 96, 100, 128, 256, 1024])
@pytest.mark.parametrize(("split", "kv_heads"), [(64, 8), (64, 1), (448, 8), (NO_SPLIT, 8)])
def test_no_item_touches_more_blocks_than_are_reserved(block_size, split, kv_heads) -> None:
    """Whatever a sequence's length is, up to the longest."""
    for max_seq_len in (64, 1000, 8192, 25_600):
        reserved = max_item_blocks(max_seq_len, split, block_size, kv_heads)
        for length in {*range(1, max_seq_len, 67), *range(64, max_seq_len + 1, 64)}:
            size = split_length(length, split, kv_heads)
            for start in range(0, length, size):
                stop = min(start + size, length)
                assert (stop - 1) // block_size - start // block_size < reserved


def test_blocks_of_one_token_are_listed() -> None:
    """Many block ids of an item are copied by several programs."""
    for mine, expected in zip(
        listed([70, 0], NO_SPLIT, 1, 8)[0], listed([70, 0], NO_SPLIT, 1, 8, reference)[0], strict=True
    ):
        assert torch.equal(mine, expected)


@given(
    lengths=LENGTHS,
    split=st.sampled_from([64, 192, 1024, NO_SPLIT]),
    block_size=st.sampled_from([16, 64, 256]),
    kv_heads=st.sampled_from([1, 8]),
)
def test_every_token_is_in_one_item(lengths, split, block_size, kv_heads) -> None:
    """Items cover each entry once, in slots that are adjacent and all different, with the blocks that hold their tokens."""
    (items, blocks, count), table, rows = listed(lengths, split, block_size, kv_heads, reference)
    items = items[: int(count)].tolist()
    assert sorted(item[3] for item in items) == list(range(int(count)))
    for entry, length in enumerate(lengths):
        mine = sorted((item for item in items if item[0] == entry), key=lambda item: item[1])
        assert [item[3] - item[4] for item in mine] == list(range(len(mine)))
        assert {item[5] for item in mine} == {len(mine)}
        assert len(mine) <= max_splits(kv_heads)
        assert [item[1] for item in mine] + [length] == [0] + [item[2] for item in mine]
    for place, item in enumerate(items):
        needed = table[rows[item[0]], item[1] // block_size : -(-item[2] // block_size)]
        assert torch.equal(blocks[place, : len(needed)], needed)


@given(lengths=LENGTHS, split=st.sampled_from([64, 256, NO_SPLIT]))
def test_long_items_come_first(lengths, split) -> None:
    """Among whole sequences and remainders, none is behind a shorter one."""
    (items, _, count), _, _ = listed(lengths, split, 64, 8, reference)
    sizes = [item[2] - item[1] for item in items[: int(count)].tolist() if item[5] == 1]
    partial = [size for size in sizes if size < split]
    assert partial == sorted(partial, reverse=True)


@pytest.mark.parametrize(
    ("change", "kind", "name"),
    [
        (
            {"rows": torch.zeros(0, dtype=torch.int32), "seq_lens": torch.zeros(0, dtype=torch.int32)},
            ShapeError,
            "rows",
        ),
        ({"seq_lens": torch.zeros(2)}, DtypeError, "seq_lens"),
        ({"split_size": 100}, ShapeError, "split_size"),
        ({"items": torch.zeros(3, 8, dtype=torch.int32)}, ShapeError, "items"),
        ({"blocks": torch.zeros(4, 3, dtype=torch.int32)}, ShapeError, "blocks"),
    ],
)
def test_a_wrong_argument_is_named(change, kind, name) -> None:
    """The error says which argument it was."""
    whole = lambda *size: torch.zeros(size, dtype=torch.int32)  # noqa: E731
    arguments = {
        "block_table": whole(2, 8), "rows": whole(2), "seq_lens": whole(2), "split_size": 64, "block_size": 16, "num_kv_heads": 8,
        "items": whole(4, 8), "blocks": whole(4, 4), "count": whole(1),
    }  # fmt: skip
    with pytest.raises(kind) as caught:
        work_list(**(arguments | change))
    assert caught.value.name == name


def test_the_op_is_well_formed() -> None:
    """Schema, fake and declared mutation agree with what the op does."""
    whole = lambda *size: torch.zeros(size, dtype=torch.int32, device=DEVICE)  # noqa: E731
    arguments = (whole(2, 8), whole(2), whole(2) + 70, 64, 16, 8, whole(4, 8), whole(4, 4), whole(1))
    torch.library.opcheck(torch.ops.nanofn.work_list.default, arguments, test_utils=("test_schema", "test_faketensor"))
