"""Records to JSON and back. Every collection in an event is a tuple, so a list in JSON needs no type to be read."""

import json
from hashlib import blake2b
from typing import Any

from attrs import fields, has

from nanofn.config import Limits
from nanofn.request import Request
from nanofn.state.decision import Decision
from nanofn.state.events import (
    HintChanged,
    PrefixCacheReset,
    RequestAborted,
    RequestArrived,
    StepCompleted,
    StepDecided,
    StepFailed,
    StopStringMatched,
)
from nanofn.state.step_plan import StepPlan, StepResult

RECORDS = {
    record.__name__: record
    for record in (
        *(Limits, Request, Decision, StepResult),
        *(RequestArrived, RequestAborted, StopStringMatched, HintChanged, PrefixCacheReset),
        *(StepDecided, StepCompleted, StepFailed),
    )
}
"""What a log may hold, by name."""


def encode(value: Any) -> Any:
    """Turn a record into JSON's types: {"is": name, field: value, ...}, fields at their default left out."""
    if has(type(value)):
        given = {each.name: getattr(value, each.name) for each in fields(type(value))}
        kept = {each.name: given[each.name] for each in fields(type(value)) if given[each.name] != each.default}
        return {"is": type(value).__name__, **{name: encode(each) for name, each in kept.items()}}
    if isinstance(value, tuple):
        return [encode(each) for each in value]
    return {"hex": value.hex()} if isinstance(value, bytes) else value


def decode(value: Any) -> Any:
    """Turn `encode`'s answer back.

    Raises:
        ValueError: It is nothing that `encode` could have answered.
    """
    if isinstance(value, list):
        return tuple([decode(each) for each in value])
    if not isinstance(value, dict):
        return value
    if value.keys() == {"hex"}:
        return bytes.fromhex(value["hex"])
    name = value.get("is")
    if name not in RECORDS:
        raise ValueError(f"a record is {name!r}; it must be one of {', '.join(RECORDS)}")
    try:
        return RECORDS[name](**{key: decode(each) for key, each in value.items() if key != "is"})
    except TypeError as error:
        raise ValueError(str(error)) from error


def next_hash(before: str, step_plan: StepPlan) -> str:
    """Chain a plan to the hash of all plans before it; equal hashes mean equal plans since the beginning.

    Made of the plan's JSON, so it depends on neither the process, its hash seed nor Python's version.
    """
    text = json.dumps(encode(step_plan), separators=(",", ":"))
    return blake2b(f"{before}{text}".encode(), digest_size=16).hexdigest()
