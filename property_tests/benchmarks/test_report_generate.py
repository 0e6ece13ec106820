"""The tables that are made of recorded lines."""

from report_generate import table

ABOUT = {"size": "full", "device": "a card", "date": "2026-12-01", "versions": {"torch": "2"}, "variant": ""}


def rate(model, work="batch64", **more):
    """A recorded line of a work."""
    figures = {"best_tok_per_s": 1234.5, "median_tok_per_s": 1200.0, "limit_tok_per_s": 2469.0, "share_of_limit": 0.5}
    return ABOUT | {"model": model, "work": work, "commit": "abc", "options": {"depth": 2}} | figures | more


def test_columns_without_a_figure_are_left_out_and_a_missing_one_is_a_dash():
    """A mixture has experts, a dense model beside it none; nobody was compared with greedy."""
    lines = [rate("dense", ready_s=12.34), rate("mixture", experts_hit=125.94, num_experts=128)]
    assert table(lines).splitlines()[2:] == [
        "| model | work | best | median | limit | share | experts a step | ready after |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
        "| dense | batch64 | 1,234 tok/s | 1,200 | 2,469 | 50.0% | – | 12.3 s |",
        "| mixture | batch64 | 1,234 tok/s | 1,200 | 2,469 | 50.0% | 125.9 of 128 | – |",
    ]


def test_kinds_of_lines_have_tables_of_their_own():
    """Rates, start-up, loading, each with its columns; the commits of all are named."""
    load = ABOUT | {"model": "dense", "work": "load", "commit": "def", "options": {"depth": 2}}
    load |= {"gb": 29.541, "best_seconds": 3.456, "best_gb_per_s": 8.548}
    start = ABOUT | {"model": "dense", "work": "start-up", "commit": "abc", "options": {"depth": 2}}
    start |= {"best_ready_s": {"cold": 16.0, "warm": 9.0}, "best_first_token_s": {"cold": 1.0, "warm": 0.1}}
    text = table([load, rate("dense"), start])
    assert "commit abc, def," in text
    assert sum(row.startswith("|---") for row in text.splitlines()) == 3
    assert "| dense | 29.54 GB | 3.46 s | 8.55 GB/s |" in text
    assert "| dense | 16.0 s | 9.0 s | 0.10 s |" in text
