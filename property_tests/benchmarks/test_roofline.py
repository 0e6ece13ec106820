"""The roofline's counts, worked out by hand and against published figures."""

import pytest
from attrs import evolve

from generate_work import equal_work
from model_dimensions import PUBLISHED, config_json
from planned_steps import planned_steps
from random_checkpoint import tensor_shapes
from roofline import Ceilings, Dimensions, Entry, dimensions_of, least_seconds, step_seconds, step_work
from schedule_work import standard_work

SMALL = Dimensions(
    num_layers=2, hidden_size=4, num_heads=2, num_kv_heads=1, head_dim=2, intermediate_size=8, vocab_size=10
)
STEP = [Entry(5, 1, samples=True), Entry(0, 3, samples=False)]
H200 = Ceilings(4.613e12, 679e12)
"""As measured on one: a read, and a product of 8,192 cubed."""

NUM_PARAMETERS = {
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
}
"""Of the published checkpoints."""


def test_a_step_by_hand():
    """A decode behind 5 tokens and a prefill of 3, of which one samples.

    Linears: Q, K, V and output take 2 (2 + 1) 2 · 4 = 48 weights a layer, the unit 3 · 4 · 8 = 96, two layers 288; four
    tokens. Attention: 6 and 1 + 2 + 3 pairs, each 4 · 2 layers · 2 heads · 2 operations; 5 tokens read and 4 written, each
    2 · 2 layers · 1 head · 2 · 2 bytes. Head: 4 · 10 weights, one row.
    """
    assert step_work(SMALL, STEP) == {
        "linears": (2 * 288 * 4, 288 * 2),
        "attention": (32 * 12, 9 * 16),
        "head": (2 * 40, 40 * 2),
    }


def test_each_part_is_bound_by_operations_or_bytes():
    """A part takes the longer of its two times, and parts follow each other."""
    assert step_seconds(SMALL, Ceilings(100, 1_000), STEP) == pytest.approx(5.76 + 1.44 + 0.8)
    assert step_seconds(SMALL, Ceilings(1e9, 1_000), STEP) == pytest.approx(2.304 + 0.384 + 0.08)
    assert step_seconds(SMALL, Ceilings(100, 400), STEP) == pytest.approx(5.76 + 1.44 + 0.8)
    assert step_seconds(SMALL, Ceilings(100, 300), STEP) == pytest.approx(2304 / 300 + 1.44 + 0.8)


def test_nothing_sampled_needs_no_head():
    """A chunk in the middle of a prompt reads no head."""
    assert "head" not in step_work(SMALL, STEP[1:])


def test_experts():
    """One token reads its own experts, very many tokens all of them; each is multiplied with its own alone."""
    mixture = dimensions_of(config_json("qwen3-30b-a3b"))
    assert mixture.linear_weights_read(1) == pytest.approx(mixture.linear_weights_per_token())
    assert mixture.linear_weights_read(100_000) == pytest.approx(
        48 * (mixture.attention_weights + 128 * 3 * 2_048 * 768)
    )
    # The 3.3 billion active parameters of the name, the embedding's 0.3 billion counted.
    assert mixture.linear_weights_per_token() + 2 * mixture.head_weights == pytest.approx(3.35e9, rel=0.01)


def test_experts_of_a_step_of_64_tokens():
    """By chance 64 tokens miss 128 (1 - 8 / 128)^64 = 2.06 of 128 experts; what was measured of such steps counts instead."""
    mixture = dimensions_of(config_json("qwen3-30b-a3b"))
    assert mixture.units_read(64) == pytest.approx(128 - 2.06, abs=0.01)
    measured = evolve(mixture, experts_hit={64: 100.5})
    assert [100.5, mixture.units_read(63)] == [measured.units_read(64), measured.units_read(63)]
    less = mixture.linear_weights_read(64) - measured.linear_weights_read(64)
    assert less == pytest.approx(48 * (mixture.units_read(64) - 100.5) * 3 * 2_048 * 768)
    # The limit is held against the bytes: a decode step of 64 tokens is bound by them.
    step = [Entry(128, 1, samples=True)] * 64
    shorter = step_seconds(mixture, H200, step) - step_seconds(measured, H200, step)
    assert shorter == pytest.approx(2 * less / H200.bytes_per_s)


@pytest.mark.parametrize("name", NUM_PARAMETERS)
def test_published_models_have_their_number_of_parameters(name):
    """The dimensions give as many parameters as the published checkpoint has, in the files and in the roofline's count."""
    shapes = tensor_shapes(config_json(name))
    products = [shape[0] * (shape[1] if len(shape) == 2 else 1) for shape in shapes.values()]
    assert NUM_PARAMETERS[name] == sum(products)
    dimensions = dimensions_of(config_json(name))
    embeddings = 1 if PUBLISHED[name].get("tie_word_embeddings") else 2
    matrices = sum(found for found, shape in zip(products, shapes.values(), strict=True) if len(shape) == 2)
    assert matrices == dimensions.linear_weights_read(10**9) + embeddings * dimensions.head_weights


@pytest.mark.parametrize(("name", "standard", "alone"), [("qwen3-0.6b", 38_100, 3_730), ("qwen3-8b", 12_400, 303)])
def test_limits_of_the_standard_work(name, standard, alone):
    """Another program, with a scheduler of its own, put the limits of an H200 at these tokens per second."""
    dimensions, work = dimensions_of(config_json(name)), standard_work()
    num_tokens = sum(count for _, count in work)
    assert num_tokens / least_seconds(dimensions, H200, planned_steps(work)) == pytest.approx(standard, rel=0.005)
    assert 512 / least_seconds(dimensions, H200, planned_steps(equal_work(1, 128, 512))) == pytest.approx(
        alone, rel=0.005
    )


@pytest.mark.parametrize("num_shared", [0, 128])
def test_planned_steps_compute_every_token_once(num_shared):
    """Each token but the last of an output is computed once, each output token sampled once, a shared prefix computed once."""
    requests = equal_work(5, 30, 7, num_shared)
    entries = [entry for step in planned_steps(requests) for entry in step]
    assert sum(entry.num_tokens for entry in entries) == 5 * 30 + num_shared + 5 * (7 - 1)
    assert sum(entry.samples for entry in entries) == 5 * 7
    # In decode, every context from the prompt's to the last but one is read by every request.
    reads = sorted(entry.first_position for entry in entries if entry.num_tokens == 1)
    assert reads == sorted(5 * [num_shared + 30 + place for place in range(6)])
