"""Facts: what a call tells the policy about its prompts."""

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, TypedDict

from attrs import frozen

from nanofn.errors import ParameterError, RequestError
from nanofn.request import Hint


class PolicyFacts(TypedDict, total=False):
    """What a call may tell the policy: one value for all prompts, or a list with one each.

    Attributes:
        priority: (0) As the policy reads it.
        client: ("") Whom to account the service to.
        deadline: (None) Wanted completion, in seconds from now.
        hint: (None) A predictor's word about each prompt's children, such as an expected output length.
    """

    priority: int | list[int]
    client: str | list[str]
    deadline: float | list[float] | None
    hint: Hint | list[Hint] | None


@frozen
class Facts:
    """What a caller tells the policy about one prompt.

    Attributes:
        priority: Larger or smaller is better as the policy reads it.
        client: Whom to account the service to.
        deadline: Wanted completion, in seconds from arrival.
        hint: A predictor's word, such as an expected output length.
    """

    priority: int = 0
    client: str = ""
    deadline: float | None = None
    hint: Hint | None = None


def checked_facts(facts: Facts) -> Facts:
    """Make plain numbers of other libraries' ones; the engine's state holds nothing else.

    Raises:
        ParameterError: Which one is of another type, and what it may be.
    """
    priority: Any = facts.priority
    client: Any = facts.client
    deadline: Any = facts.deadline
    hint: Any = tuple(facts.hint) if isinstance(facts.hint, list | tuple) else facts.hint
    if type(priority) is bool or not isinstance(priority, Integral):
        raise ParameterError("priority", priority, "an integer")
    if not isinstance(client, str):
        raise ParameterError("client", client, "a text")
    if deadline is not None and not _is_finite(deadline):
        raise ParameterError("deadline", deadline, "a number of seconds, or None")
    if hint is not None and not all(map(_is_finite, hint if isinstance(hint, tuple) else (hint,))):
        raise ParameterError("hint", hint, "a number, some numbers, or None")
    plain = tuple(map(_plain, hint)) if isinstance(hint, tuple) else None if hint is None else _plain(hint)
    return Facts(int(priority), client, None if deadline is None else float(deadline), plain)


def _is_finite(value: Any) -> bool:
    return type(value) is not bool and isinstance(value, Real) and math.isfinite(value)


def _plain(value: Any) -> int | float:
    return int(value) if isinstance(value, Integral) else float(value)


def read_facts(given: Mapping[str, Any], count: int) -> list[Facts]:
    """Read a call's keywords: one record per prompt.

    Raises:
        TypeError: A keyword is unknown.
        RequestError: A list has another length than the call has prompts.
    """
    unknown = sorted(given.keys() - PolicyFacts.__annotations__.keys())
    if unknown:
        raise TypeError(f"there is no option {unknown[0]!r}; options are {', '.join(PolicyFacts.__annotations__)}")
    columns = {name: per_prompt(value, count, name) for name, value in given.items()}
    return [Facts(**{name: values[place] for name, values in columns.items()}) for place in range(count)]


def per_prompt(value: Any, count: int, name: str) -> list[Any]:
    """Spread one value over all prompts; a list gives one each.

    Raises:
        RequestError: The list has another length than the call has prompts.
    """
    if not isinstance(value, list):
        return [value] * count
    if len(value) != count:
        short = min(len(value), count)
        raise RequestError(((short, f"{count} prompts came with {len(value)} {name}; give one for all or one each"),))
    return value
