"""Values of `config.json`, each checked where it is read."""

import sys
from collections.abc import Mapping
from typing import Any

from nanofn.errors import CheckpointError


def count(config_json: Mapping[str, Any], key: str, default: int | None = None, *, least: int = 1) -> int:
    """Read an integer; a null is an absent one.

    Raises:
        CheckpointError: It is absent without a default, or no integer of at least `least`.
    """
    value = config_json.get(key)
    value = default if value is None else value
    if value is None:
        raise CheckpointError(f"config.json has no {key!r}")
    if type(value) is not int or value < least:
        raise CheckpointError(f"config.json has {key} {value!r}; it must be an integer of at least {least}")
    return value


def positive(config_json: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """Read a positive number.

    Raises:
        CheckpointError: It is absent without a default, or no positive number.
    """
    value = config_json.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
        raise CheckpointError(f"config.json has {key} {value!r}; it must be a positive number")
    return float(value)


def flag(config_json: Mapping[str, Any], key: str, default: bool) -> bool:
    """Read a switch; a null is an absent one.

    Raises:
        CheckpointError: It is neither true nor false.
    """
    value = config_json.get(key)
    value = default if value is None else value
    if not isinstance(value, bool):
        raise CheckpointError(f"config.json has {key} {value!r}; it must be true or false")
    return value
