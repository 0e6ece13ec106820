"""StructuredOutputsParams: the form that an output must have. Names and meanings are vLLM's."""

import json
from collections.abc import Mapping
from typing import Any

from attrs import fields, frozen

from nanofn.errors import ParameterError

_FORMS = ("json", "regex", "choice", "grammar", "json_object")


def _as_text(value: Any) -> Any:
    """Take a schema as a dict, as JSON or as a pydantic model; freeze it as JSON."""
    if hasattr(value, "model_json_schema"):
        value = value.model_json_schema()
    if not isinstance(value, Mapping):
        return value
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ParameterError("structured_outputs.json", value, f"what JSON can say ({error})") from error


@frozen(kw_only=True)
class StructuredOutputsParams:
    """What an output must look like; exactly one of the first five is given.

    Attributes:
        json: A JSON schema: a dict, its text, or a pydantic model.
        regex: A regular expression that the whole output matches.
        choice: The texts of which the output is one.
        grammar: A grammar in Lark's or GBNF's notation.
        json_object: True for any JSON object.
        disable_any_whitespace: JSON with no blanks but those in its strings.

    Raises:
        ParameterError: None or several are given, or a value is of another type.
    """

    json: str | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False

    def __init__(self, **given: Any) -> None:
        """Take the form by its name."""
        known = {each.name: each.default for each in fields(type(self))}
        for name in given.keys() - known.keys():
            raise TypeError(f"StructuredOutputsParams has no field {name!r}; it has {', '.join(known)}")
        values = known | given
        values["json"] = _as_text(values["json"])
        if isinstance(values["choice"], (list, tuple)):
            values["choice"] = tuple(values["choice"])
        self.__attrs_init__(**values)  # type: ignore[attr-defined]

    def __attrs_post_init__(self) -> None:
        found = [name for name in _FORMS if getattr(self, name) not in (None, False)]
        if len(found) != 1:
            raise ParameterError("structured_outputs", found, f"exactly one of {', '.join(_FORMS)}")
        for name, kinds in (
            ("json", "a dict, its text, or a pydantic model"),
            ("regex", "a text"),
            ("grammar", "a text"),
        ):
            if not isinstance(getattr(self, name), (str, type(None))):
                raise ParameterError(f"structured_outputs.{name}", getattr(self, name), kinds)
        for name in ("json_object", "disable_any_whitespace"):
            if getattr(self, name) not in (None, True, False):
                raise ParameterError(f"structured_outputs.{name}", getattr(self, name), "True or False")
        choices: Any = ("any",) if self.choice is None else self.choice
        if not (isinstance(choices, tuple) and choices and all(isinstance(each, str) and each for each in choices)):
            raise ParameterError("structured_outputs.choice", self.choice, "a list of at least one text, none empty")
