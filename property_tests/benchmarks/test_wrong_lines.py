"""A kernel's time counts only beside a right result."""

import pytest

from record import RESULTS
from report_generate import read_lines
from wrong_lines import MAX_ERROR, main, wrong_lines


@pytest.mark.parametrize("name", ["sample", *MAX_ERROR])
def test_the_committed_records_are_right(name):
    """No committed line of a kernel, explorations included, has a wrong result."""
    path = RESULTS / f"{name}.jsonl"
    assert not path.exists() or wrong_lines(read_lines(path)) == []


@pytest.mark.parametrize(
    "line",
    [
        {"kernel": "paged_decode", "error": 5e-3},
        {"kernel": "linear", "error": float("nan")},
        {"kernel": "linear", "subject": "bits", "batch_invariant": True, "equal": {"1": True, "65": False}},
        {"kernel": "sample", "equal": 0.97},
        {"kernel": "adjust", "error": 0.0, "forbids_the_same": False},
    ],
)
def test_a_wrong_line_is_found(line, tmp_path):
    """Each way to be wrong is seen beside a right line, and is no success."""
    right = {"kernel": "paged_decode", "error": 2e-3}
    assert wrong_lines([right, line, line | {"wrong": "known"}]) == [line]
    path = tmp_path / "lines.jsonl"
    path.write_text('{"kernel": "sample", "equal": 0.5}\n', encoding="utf-8")
    with pytest.raises(SystemExit, match="1 lines are wrong"):
        main([str(path)])


def test_what_has_no_result_is_not_wrong():
    """Other libraries' times, chains without a reference, and bits that may depend on the batch are no errors."""
    lines = [
        {"kernel": "linear", "subject": "library layer", "median": 1.0},
        {"kernel": "paged_decode", "error": None},
        {"kernel": "work_list", "median": 1.0},
        {"kernel": "linear", "subject": "bits", "batch_invariant": False, "equal": {"1": False}},
    ]
    assert wrong_lines(lines) == []
