"""The pictures on the kernels' pages show the last lines that count, and the pages show the pictures."""

import importlib.util

import pytest

from draw_kernels import PAGES, PEERS, Panel, adjust, draw, latest, linear, paged_decode, panels_of, recorded
from report_generate import read_lines


def test_the_last_line_that_counts_is_shown():
    """Explorations and wrong runs do not count, and a line without a key is not one with it."""
    lines = [
        {"rows": 1, "median": 1.0},
        {"rows": 1, "median": 2.0},
        {"rows": 1, "median": 3.0, "exploration": True},
        {"rows": 1, "median": 4.0, "wrong": "two processes on the device"},
        {"rows": 1, "split": 256, "median": 5.0},
    ]
    found = latest(lines, ("rows", "split"))
    assert {key: line["median"] for key, line in found.items()} == {(1, None): 2.0, (1, 256): 5.0}


def decode_line(pdl, share):
    """A line of the decode benchmark at 64 × 2,048."""
    keys = {"kernel": "paged_decode", "batch": 64, "context": 2048, "block_size": 64, "heads": 16, "split": 0}
    return keys | {"pdl": pdl, "chain": False, "mixed": False, "share": share, "read_gb_per_s": 4600}


def test_peers_stand_beside_what_they_are_compared_with():
    """A peer's share is its own time over its own run's ceiling, and the first kernel's, less the noise, is a target."""
    own = {"kernel": "paged_decode", "batch": 64, "context": 2048, "block_size": 16, "read_gb_per_s": 4613}
    peers = [own | {"library": "FA3", "median": 129}, own | {"library": "a first Triton kernel", "median": 127}]
    (panel,) = paged_decode([decode_line(False, 0.9), decode_line(True, 0.91)], peers)
    assert panel.groups == ["64 ×\n2,048"]
    assert (panel.series["nanofn"], panel.series["nanofn, dependent launch"]) == ([0.9], [0.91])
    read = 2 * 64 * 2048 * 8 * 128 * 2
    assert panel.series["FA3"] == pytest.approx([read / 129e-6 / 4613e9])
    assert panel.target == pytest.approx([read / 127e-6 / 4613e9 / 1.02])
    assert panel.series["FlashInfer 0.6.14"] == [None]


def test_the_librarys_products_are_added_up():
    """A layer's four products, each timed alone, stand beside a layer."""
    lines = [
        {"model": model, "rows": 64, "subject": subject, "batch_invariant": invariant, "median": 20.0, "limit": 7.0}
        for model in ("Qwen3-0.6B", "Qwen3-8B")
        for subject, invariant in (("layer", False), ("layer", True), ("library layer", None))
    ] + [
        {"model": model, "rows": 64, "subject": "library product", "product": product, "median": time}
        for model in ("Qwen3-0.6B", "Qwen3-8B")
        for product, time in zip(("qkv", "out", "up", "down"), (1.0, 2.0, 3.0, 4.0), strict=True)
    ]
    first, second = linear(lines, [])
    assert first.series["cuBLAS's products alone"] == [10.0]
    assert (first.limit, first.target, second.target) == ([7.0], [19.0], [None])


def test_what_rows_ask_for_is_shown_at_the_largest_batch():
    """Of adjusted logits the lines of 256 rows are drawn, a bar for each thing that is asked for."""
    lines = [
        {"kernel": "adjust", "rows": rows, "asked": asked, "median": 2.0 * rows, "limit": 1.0 * rows}
        for rows in (1, 256)
        for asked in ("penalties, min_tokens", "logprobs=5")
    ]
    (panel,) = adjust(lines, [])
    assert panel.groups == ["penalties,\nmin_tokens", "logprobs\n= 5"]
    assert (panel.series, panel.limit) == ({"nanofn": [512.0, 512.0]}, [256.0, 256.0])


@pytest.mark.parametrize("name", recorded())
def test_every_picture_is_on_its_page_and_has_what_it_shows(name):
    """The committed records make whole panels, and the page of the same name includes the picture."""
    assert f"]({name}.svg)" in (PAGES / f"{name}.md").read_text(encoding="utf-8")
    for panel in panels_of(name):
        sizes = {len(heights) for heights in panel.series.values()}
        assert sizes == {len(panel.groups)}
        assert all(len(marks) in {0, len(panel.groups)} for marks in (panel.limit, panel.target))
        assert None not in panel.series[next(iter(panel.series))]


def test_recorded_peers_have_a_device_and_a_ceiling():
    """Whoever is compared with says where and under which ceiling it was measured."""
    assert all(line["device"] and line["read_gb_per_s"] > 0 for line in read_lines(PEERS))


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="drawing needs matplotlib, an extra")
def test_the_same_panels_give_the_same_picture(tmp_path):
    """A picture changes when what it shows does, and has its words as text."""
    panel = Panel("A kernel", "µs", ["1 row", "2 rows"], {"nanofn": [1.0, None]}, [0.5, 0.5], [None, 2.0])
    for name in ("a.svg", "b.svg"):
        draw([panel], tmp_path / name)
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert text == (tmp_path / "b.svg").read_text(encoding="utf-8")
    assert all(word in text for word in ("A kernel", "2 rows", "nanofn", "limit", "target"))
