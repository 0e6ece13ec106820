"""Recorded lines of kernels whose results were wrong: a time counts only beside a right result.

python benchmarks/wrong_lines.py RESULTS.jsonl ...     # fails if there is one
"""

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from report_generate import Line, read_lines

MAX_ERROR = {
    "paged_decode": 4e-3,
    "paged_prefill": 4e-3,
    "norm_rope_store": 4e-3,
    "linear": 5e-3,
    "adjust": 1e-4,
}
"""Largest error of a bf16 result in norm against float32, rounding included: that of `property_tests/ops` for attention; a
layer of four products has reached 3.8e-3. Adjusted logits: largest difference, of float32 results."""

LEAST_EQUAL = 0.98
"""Least share of rows whose token is the reference's; 1.0 in all records so far. Rounding may decide between two tokens."""


def wrong_lines(lines: Sequence[Line]) -> list[Line]:
    """Take the lines whose result was wrong; lines without a result, such as another library's, are not."""
    return [line for line in lines if not line.get("wrong") and is_wrong(line)]


def is_wrong(line: Line) -> bool:
    """Say whether a line's result is not the reference's, or not independent of the batch where it should be."""
    if line.get("subject") == "bits":
        return line["batch_invariant"] and not all(line["equal"].values())
    if line["kernel"] == "sample":
        return not line["equal"] >= LEAST_EQUAL
    error = line.get("error")
    # What is not a number is wrong too.
    return (error is not None and not error <= MAX_ERROR[line["kernel"]]) or line.get("forbids_the_same") is False


def main(arguments: list[str]) -> None:
    """Print wrong lines, and fail if there are any."""
    found = [(name, line) for name in arguments for line in wrong_lines(read_lines(Path(name)))]
    for name, line in found:
        print(name, line)
    if found:
        raise SystemExit(f"{len(found)} lines are wrong")


if __name__ == "__main__":
    main(sys.argv[1:])
