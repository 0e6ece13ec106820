"""A position's log-probabilities as bytes: what a device sends, and what a result keeps until it is read.

Objects would take a step of 256 rows as long as all else that the host does in it, and a result is rarely read whole.
"""

from functools import cache

import numpy as np


@cache
def record_type(num_top: int) -> np.dtype[np.void]:
    """Name the fields of a record.

    Args:
        num_top: How many of the likeliest ids it has.

    Returns:
        rank of the token, int32, from 1; found, [1 + num_top]: the token, then the likeliest ids in order, each with token_id,
        int32, and logprob, fp32.
    """
    pair = np.dtype([("token_id", "<i4"), ("logprob", "<f4")])
    return np.dtype([("rank", "<i4"), ("found", pair, (1 + num_top,))])


def record_bytes(num_top: int) -> int:
    """Count the bytes of a record; those of a wider one begin with it."""
    return record_type(num_top).itemsize


def num_top_of(record: bytes) -> int:
    """Tell how many of the likeliest ids a record has."""
    smallest = record_bytes(0)
    return (len(record) - smallest) // (record_bytes(1) - smallest)
