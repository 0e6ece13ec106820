"""Tokens follow the exact distribution of their parameters: chi-square at fixed seeds, on the whole path of a row."""

import math

import numpy as np
import pytest
import torch

from nanofn.batch.masks import NO_MASKS, Masks
from nanofn.batch.row_sampling import RowSampling
from nanofn.batch.row_start import RowStart
from nanofn.config import Limits
from nanofn.device.row_params import RowParams
from nanofn.device.tables import allocate_tables, start_rows
from nanofn.sampling.sample import sample
from sampling.exact import distribution

VOCAB_SIZE = 12
LOGITS = torch.tensor([0.4, -0.9, 1.6, 1.6, -2.1, 0.0, 0.7, -0.3, 1.6, 0.2, -1.4, 1.1])
"""Three ids share the largest logit, so that top-k has to cut through a tie."""
PROMPT, OUTPUT = (2, 2, 6, 9), (3, 11, 3, 5)
LEAST_P = 1e-4

FILTERS = {
    "nothing": {},
    "temperature below 1": {"temperature": 0.4},
    "temperature above 1": {"temperature": 2.5},
    "top-k through a tie": {"top_k": 2},
    "top-k of more ids than there are": {"top_k": 50},
    "top-k of -1": {"top_k": -1},
    "top-p": {"top_p": 0.55},
    "a top-p that almost nothing passes": {"top_p": 1e-9},
    "min-p": {"min_p": 0.3},
    "top-k and top-p": {"top_k": 6, "top_p": 0.7},
    "top-k and min-p": {"top_k": 6, "min_p": 0.4},
    "top-p and min-p": {"top_p": 0.9, "min_p": 0.25},
    "all filters, warm": {"top_k": 9, "top_p": 0.85, "min_p": 0.1, "temperature": 1.7},
}
ADJUSTMENTS = {
    "repetition": {"repetition_penalty": 1.8},
    "repetition below 1": {"repetition_penalty": 0.5},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 0.9},
    "penalties below 0": {"presence_penalty": -0.7, "frequency_penalty": -0.5},
    "all penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.3},
    "bias": {"logit_bias": ((4, 3.0), (2, -100.0), (8, -0.5))},
    "allowed ids": {"allowed_token_ids": (1, 2, 4, 8, 10)},
    "bad words": {"bad_words": ((8,), (3, 5, 2), (11, 3), (5, 5, 6), (9, 5, 3))},
    "too early to end": {"min_tokens": 5, "end_token_ids": (2, 11)},
    "late enough to end": {"min_tokens": 4, "end_token_ids": (2, 11)},
    "penalties and filters": {"repetition_penalty": 1.4, "frequency_penalty": 0.5, "top_k": 7, "top_p": 0.8},
    "bias and filters": {"logit_bias": ((4, 4.0),), "top_p": 0.75, "temperature": 0.8},
    "all at once": {
        "temperature": 1.3, "top_k": 8, "top_p": 0.95, "min_p": 0.02, "repetition_penalty": 1.2, "presence_penalty": 0.3,
        "frequency_penalty": 0.2, "logit_bias": ((0, 1.0), (11, -1.0)), "bad_words": ((5, 2), (7,)), "min_tokens": 9,
        "allowed_token_ids": (0, 1, 2, 3, 5, 6, 7, 8, 9, 11), "end_token_ids": (9,),
    },
}  # fmt: skip


def p_value(counts, probabilities):
    """Chi-square's upper tail; bins that expect fewer than five draws are one bin, impossible ones must be empty."""
    total = sum(counts)
    assert [count for count, p in zip(counts, probabilities, strict=True) if p == 0 and count] == []
    pairs = [(count, total * p) for count, p in zip(counts, probabilities, strict=True) if p > 0]
    bins = [pair for pair in pairs if pair[1] >= 5]
    rare = [pair for pair in pairs if pair[1] < 5]
    if rare:
        bins.append((sum(count for count, _ in rare), math.fsum(expected for _, expected in rare)))
    if len(bins) < 2:
        return 1.0
    statistic = math.fsum((count - expected) ** 2 / expected for count, expected in bins)
    half = torch.tensor([(len(bins) - 1) / 2, statistic / 2], dtype=torch.float64)
    return torch.special.gammaincc(*half).item()


@pytest.mark.parametrize("name", FILTERS)
def test_draws_follow_the_filtered_distribution(name):
    """100,000 rows of one batch, which differ in position alone."""
    count, sampling = 100_000, RowSampling(**FILTERS[name])
    tokens = sample(
        LOGITS.expand(count, VOCAB_SIZE),
        torch.full((count,), sampling.temperature),
        torch.full((count,), 41),
        torch.arange(count),
        torch.zeros(count, dtype=torch.int64),
        torch.full((count,), sampling.top_k),
        torch.full((count,), sampling.top_p),
        torch.full((count,), sampling.min_p),
    )
    counts = torch.bincount(tokens.long(), minlength=VOCAB_SIZE).tolist()
    assert p_value(counts, distribution(LOGITS, sampling, (), ())) > LEAST_P


def choose(samplings, *, logits=LOGITS, prompt=PROMPT, output=OUTPUT, masks=NO_MASKS):
    """One token for each of some rows, all with the same logits and tokens, each with its own seed."""
    count = len(samplings)
    limits = Limits(
        block_size=4, num_blocks=count * 4, max_num_seqs=count, max_num_batched_tokens=count, max_model_len=16
    )
    tables = allocate_tables(limits, torch.device("cpu"))
    rows = RowParams(tables, len(logits))
    starts = [
        RowStart(row, row, (*prompt, *output), len(prompt), sampling, seed=row, child=0)
        for row, sampling in enumerate(samplings)
    ]
    start_rows(tables, starts)
    rows.start(starts)
    positions = np.full(count, len(prompt) + len(output))
    return rows.choose(logits.expand(count, len(logits)), list(range(count)), positions, masks).tolist()


@pytest.mark.parametrize("name", ADJUSTMENTS)
def test_draws_follow_the_adjusted_distribution(name):
    """2,000 rows, each told its parameters as a device row is, which differ in seed alone."""
    sampling = RowSampling(**ADJUSTMENTS[name])
    tokens = choose([sampling] * 2_000)
    counts = [tokens.count(token_id) for token_id in range(VOCAB_SIZE)]
    assert p_value(counts, distribution(LOGITS, sampling, PROMPT, OUTPUT)) > LEAST_P


def test_the_chi_square_test_sees_small_differences():
    """Draws at temperature 1 are not taken for those at 1.5, nor for those with a penalty."""
    tokens = choose([RowSampling()] * 2_000)
    counts = [tokens.count(token_id) for token_id in range(VOCAB_SIZE)]
    assert p_value(counts, distribution(LOGITS, RowSampling(), (), ())) > LEAST_P
    assert p_value(counts, distribution(LOGITS, RowSampling(temperature=1.5), (), ())) < LEAST_P
    assert p_value(counts, distribution(LOGITS, RowSampling(presence_penalty=0.5), (), OUTPUT)) < LEAST_P


def test_a_row_among_others_of_all_kinds_gets_what_it_gets_alone():
    """Greedy and warm, filtered and not, adjusted and not: no row's parameters reach another's."""
    kinds = [RowSampling(**fields) for fields in (*FILTERS.values(), *ADJUSTMENTS.values(), {"temperature": 0.0})]
    together = choose(kinds)
    for row, sampling in enumerate(kinds):
        neighbours = [RowSampling()] * row
        assert choose([*neighbours, sampling])[row] == together[row]


def test_a_greedy_row_with_a_forbidden_id_stays_finite_beside_a_warm_one():
    """-inf is not divided by anything: row 0 takes its best allowed id, and the warm row its own."""
    forbidding = RowSampling(temperature=0.0, bad_words=((2,), (3,)))
    greedy, warm = choose([forbidding, RowSampling()])
    assert greedy == 8
    assert warm == choose([RowSampling(), RowSampling()])[1]


@pytest.mark.parametrize(
    "fields", [{"top_p": 1e-9}, {"top_k": 1}, {"min_p": 1.0}, {"temperature": 1e-4}, {"temperature": 1e-6}]
)
def test_extreme_filters_are_greedy(fields):
    """Logits 80 and 79: the likeliest id, whichever way all others are left out."""
    logits = torch.tensor([79.0, 80.0, -5.0])
    assert choose([RowSampling(**fields)] * 50, logits=logits, prompt=(0,), output=()) == [1] * 50


def test_one_rule_decides_ties_everywhere():
    """Equal logits: greedy, top-k of one and a tiny top-p all take the lowest id; top-k of two keeps the two lowest."""
    logits = torch.tensor([1.0, 3.0, 3.0, 3.0])
    first = [RowSampling(temperature=0.0), RowSampling(top_k=1), RowSampling(top_p=1e-9)]
    assert choose(first, logits=logits, prompt=(0,), output=()) == [1, 1, 1]
    assert set(choose([RowSampling(top_k=2)] * 60, logits=logits, prompt=(0,), output=())) == {1, 2}


@pytest.mark.parametrize("amount", [1e30, -1e30])
def test_huge_adjustments_forbid_or_force_and_leave_numbers_finite(amount):
    """A bias and a penalty of 1e30 at the least warm temperature: an id is forced or never taken, no row is undefined."""
    biased = RowSampling(temperature=1e-5, logit_bias=((4, amount),), repetition_penalty=1e30)
    assert set(choose([biased] * 20)) == ({4} if amount > 0 else {8})


def test_a_mask_holds_for_its_own_row_alone():
    """Rows with a mask keep to it, those without choose what they choose when there is none; other restrictions still hold."""
    mask = 1 << 1 | 1 << 4 | 1 << 10
    every, second = (
        Masks(tuple(rows), np.full((len(rows), 1), mask, dtype=np.uint32)) for rows in (range(40), range(0, 40, 2))
    )
    kinds = [RowSampling(), RowSampling(temperature=0.0), RowSampling(top_k=3), RowSampling(bad_words=((10,),))] * 10
    free, masked = choose(kinds), choose(kinds, masks=second)
    assert masked[1::2] == free[1::2]
    assert set(masked[::2]) == {1, 4, 10}
    others = choose([RowSampling(bad_words=((10,),))] * 40, masks=every)
    assert set(others) == {1, 4}
