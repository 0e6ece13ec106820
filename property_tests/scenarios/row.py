"""Which reports a test restates: ids of `docs/scenarios.md`, read from the source by `test_every_row.py`."""


def row(*ids):
    """Mark a test with the ids of the reports whose right behaviour it states."""
    assert ids

    def marked(function):
        return function

    return marked
