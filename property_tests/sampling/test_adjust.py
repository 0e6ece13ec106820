"""Adjustments of logits, all rows of a step together, against their definitions in float64, row by row."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from nanofn.batch.masks import NO_MASKS, Masks
from nanofn.batch.row_sampling import RowSampling
from nanofn.batch.row_start import RowStart
from nanofn.config import Limits
from nanofn.device.row_params import RowParams
from nanofn.device.tables import allocate_tables, start_rows
from sampling.exact import adjusted

VOCAB_SIZE, NUM_ROWS, MAX_LEN = 11, 4, 24
TOKEN = st.integers(0, VOCAB_SIZE - 1)
LOGITS = st.lists(
    st.one_of(st.floats(-30, 30, width=32), st.sampled_from([0.0, -math.inf])),
    min_size=VOCAB_SIZE,
    max_size=VOCAB_SIZE,
)
MASK = st.lists(st.booleans(), min_size=VOCAB_SIZE, max_size=VOCAB_SIZE)
WORD = st.lists(TOKEN, min_size=1, max_size=4).map(tuple)
ASKED = {
    "repetition_penalty": st.floats(0.1, 3),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
    "logit_bias": st.dictionaries(TOKEN, st.floats(-9, 9), max_size=4).map(lambda bias: tuple(bias.items())),
    "allowed_token_ids": st.lists(TOKEN, min_size=1, max_size=9).map(tuple),
    "bad_words": st.lists(WORD, max_size=6).map(tuple),
    "min_tokens": st.integers(0, 8),
    "end_token_ids": st.lists(TOKEN, max_size=11).map(tuple),
}
SAMPLING = st.fixed_dictionaries({}, optional=ASKED).map(lambda fields: RowSampling(**fields))


def packed(mask):
    """A mask as the loop hands it on: a bit an id."""
    return np.array([sum(1 << place for place, is_allowed in enumerate(mask) if is_allowed)], dtype=np.uint32)


class Rows:
    """Device rows, and what they ought to hold."""

    def __init__(self, vocab_size=VOCAB_SIZE, max_len=MAX_LEN):
        limits = Limits(
            block_size=4, num_blocks=99, max_num_seqs=NUM_ROWS + 2, max_num_batched_tokens=99, max_model_len=max_len
        )
        self.tables = allocate_tables(limits, torch.device("cpu"))
        self.params, self.vocab_size = RowParams(self.tables, vocab_size), vocab_size
        self.owners = {}

    def start(self, owners):
        """Give rows to new owners: row to (sampling, prompt, output)."""
        if not owners:
            return
        starts = [
            RowStart(row, row, (*prompt, *output), len(prompt), sampling, seed=row, child=0)
            for row, (sampling, prompt, output) in owners.items()
        ]
        start_rows(self.tables, starts)
        self.params.start(starts)
        self.owners |= {row: (sampling, prompt, list(output)) for row, (sampling, prompt, output) in owners.items()}

    def position(self, row):
        """Where the row's next token goes."""
        _, prompt, output = self.owners[row]
        return len(prompt) + len(output)

    def adjusted(self, rows, logits, masks, num_padding=0):
        """What the batched code makes of a step's logits; padding comes first."""
        at = [-1] * num_padding + rows
        positions = [0] * num_padding + [self.position(row) for row in rows]
        entries = torch.tensor([at, positions], dtype=torch.int32)
        words = np.array([packed(mask) for mask in masks.values()], dtype=np.uint32)
        masks = Masks(tuple(masks), words)
        x = torch.tensor([logits[row] for row in at], dtype=torch.float32).reshape(-1, self.vocab_size)
        found = self.params.adjusted(x, entries[0], entries[1], masks, masks.places_of(at))
        assert torch.equal(found[:num_padding], x[:num_padding])
        return found[num_padding:]

    def check(self, rows, logits, masks, num_padding=0):
        """The batched code against the definition."""
        found = self.adjusted(rows, logits, masks, num_padding)
        expected = [adjusted(logits[row], *self.owners[row], masks.get(row)) for row in rows]
        torch.testing.assert_close(found, torch.tensor(expected).reshape(found.shape), rtol=1e-6, atol=1e-5)

    def sampled(self, row, token_id):
        """Put a token where a sampler puts it: only the device has it."""
        self.tables.tokens[row, self.position(row)] = token_id
        self.owners[row][2].append(token_id)


@given(data=st.data())
def test_a_steps_rows_together_get_what_each_gets_by_definition(data):
    """Over some steps with padding, masks, repeated steps, new owners and resumed ones, rows in any order."""
    rows = Rows()
    owner = st.tuples(SAMPLING, st.lists(TOKEN, min_size=1, max_size=6), st.lists(TOKEN, max_size=5))
    rows.start({row: data.draw(owner) for row in range(NUM_ROWS)})
    for _ in range(data.draw(st.integers(1, 6))):
        here = data.draw(st.permutations(range(NUM_ROWS)))[: data.draw(st.integers(0, NUM_ROWS))]
        logits = {row: data.draw(LOGITS) for row in [*here, -1]}
        masks = {row: data.draw(MASK) for row in here if data.draw(st.booleans())}
        rows.check(here, logits, masks, data.draw(st.integers(0, 2)))
        if data.draw(st.booleans()):
            rows.check(here, logits, masks)
        for row in here:
            rows.sampled(row, data.draw(TOKEN))
        taken = data.draw(st.sets(st.sampled_from(range(NUM_ROWS)), max_size=2))
        resumed = {row for row in taken if data.draw(st.booleans())}
        rows.start({row: rows.owners[row] if row in resumed else data.draw(owner) for row in taken})


@pytest.mark.parametrize(
    ("fields", "mask", "left"),
    [
        ({"allowed_token_ids": (3, 4)}, [0, 1], {0, 1}),
        ({"allowed_token_ids": (3, 4), "bad_words": ((3,), (4,))}, None, {3, 4}),
        ({"allowed_token_ids": (3, 4), "bad_words": ((3,),), "min_tokens": 9, "end_token_ids": (4,)}, None, {4}),
        ({"bad_words": ((1,), (2,)), "min_tokens": 9, "end_token_ids": (1, 2, 3)}, [1, 2, 3], {3}),
        ({"min_tokens": 9, "end_token_ids": tuple(range(VOCAB_SIZE))}, None, set(range(VOCAB_SIZE))),
        ({"bad_words": ((5, 6),)}, [6], {6}),
    ],
)
def test_a_restriction_that_would_leave_nothing_is_dropped_and_those_before_it_hold(fields, mask, left):
    """A grammar counts more than allowed ids, these more than bad words, these more than an early end."""
    rows = Rows()
    rows.start({0: (RowSampling(**fields), [1, 5], [5])})
    masks = {} if mask is None else {0: [place in mask for place in range(VOCAB_SIZE)]}
    found = rows.adjusted([0], {0: [1.0] * VOCAB_SIZE}, masks)
    assert {place for place in range(VOCAB_SIZE) if found[0, place] > -math.inf} == left


def test_the_prompt_counts_for_repetition_alone():
    """Prompt 5 5 5, no output yet: presence and frequency change nothing, repetition changes id 5 alone, by its sign."""
    rows = Rows()
    others = {"presence_penalty": 1.5, "frequency_penalty": 1.5}
    rows.start({0: (RowSampling(**others), [5, 5, 5], []), 1: (RowSampling(repetition_penalty=2.0), [5, 5, 5], [])})
    for logit, penalised in ((1.0, 0.5), (-1.0, -2.0)):
        off, on = rows.adjusted([0, 1], {0: [logit] * VOCAB_SIZE, 1: [logit] * VOCAB_SIZE}, {}).tolist()
        assert [logit] * VOCAB_SIZE == off
        assert [penalised if place == 5 else logit for place in range(VOCAB_SIZE)] == on


def test_a_token_of_a_chunk_that_samples_nothing_is_not_counted_again():
    """A resumed row's chunks pass through steps beside rows that sample: its tokens are in the counts since its start."""
    rows = Rows()
    owner = RowSampling(frequency_penalty=1.0), [5], [6, 6, 7]
    rows.start({0: owner})
    entries = torch.tensor([[0], [2]], dtype=torch.int32)
    rows.params.adjusted(torch.zeros(1, VOCAB_SIZE), entries[0], entries[1], NO_MASKS, np.array([-1], np.int32))
    rows.check([0], {0: [0.0] * VOCAB_SIZE}, {})


def test_words_of_any_number_and_length_come_and_go_with_their_rows():
    """Few short words, then many long ones in another row, then a row without any."""
    rows = Rows()
    flat = {row: [0.0] * VOCAB_SIZE for row in range(NUM_ROWS)}
    rows.start({0: (RowSampling(bad_words=((1,), (2, 3))), [0], [2])})
    rows.check([0], flat, {})
    long = tuple([(*range(length), 9) for length in range(1, 9)])
    rows.start({1: (RowSampling(bad_words=long), [4], [0, 1, 2])})
    rows.check([0, 1], flat, {})
    rows.start({0: (RowSampling(min_tokens=3, end_token_ids=(8,)), [0], [2])})
    rows.check([1, 0], flat, {})


@pytest.mark.parametrize("vocab_size", [4096, 151_936])
def test_exactly_the_allowed_ids_of_a_large_vocabulary_are_left(vocab_size):
    """200 allowed ids, also where the row is a slice of a wider buffer: their values are kept to the bit."""
    wide = torch.randn(3, vocab_size + 8, generator=torch.Generator().manual_seed(0))
    chosen = torch.randperm(vocab_size, generator=torch.Generator().manual_seed(1))[:200]
    row = wide[1:2, :vocab_size]
    rows = Rows(vocab_size)
    rows.start({2: (RowSampling(allowed_token_ids=tuple(chosen.tolist())), [1], [])})
    entries = torch.tensor([[2], [1]], dtype=torch.int32)
    found = rows.params.adjusted(row, entries[0], entries[1], NO_MASKS, np.array([-1], np.int32))
    assert torch.isfinite(found).sum() == 200
    assert torch.equal(found[0, chosen], row[0, chosen])
    assert torch.equal(
        found, rows.params.adjusted(row.clone(), entries[0], entries[1], NO_MASKS, np.array([-1], np.int32))
    )


def test_a_row_that_only_holds_an_end_back_is_plain_from_there_on():
    """So that its steps are those that graphs were captured for."""
    rows = Rows()
    rows.start({0: (RowSampling(min_tokens=2, end_token_ids=(3,)), [1], []), 1: (RowSampling(), [1], [])})
    assert [rows.params.adjusts([0], np.array([position])) for position in (1, 2, 3, 4)] == [True, True, False, False]
    assert not rows.params.adjusts([1], np.array([1]))
    assert rows.params.adjusts([1, 0], np.array([9, 2]))
    rows.start({0: (RowSampling(), [1], [])})
    assert not rows.params.adjusts([0], np.array([1]))
