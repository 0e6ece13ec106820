"""generate(): prompts in, outputs out, with an engine that stays for the next call."""

from collections.abc import Iterable, Sequence
from typing import Any

from nanofn.llm.facts import PolicyFacts
from nanofn.llm.intake import PromptLike
from nanofn.llm.llm import LLM
from nanofn.llm.options import read_options
from nanofn.llm.output import RequestOutput
from nanofn.sampling.params import SamplingParams

_kept: dict[str, Any] = {}
"""The engine of the last call and what it was made with: keys "llm" and "made_with"."""

_CALL_NAMES = ("use_tqdm", *PolicyFacts.__annotations__)


def generate(
    prompts: PromptLike | Iterable[PromptLike],
    sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    **options: Any,
) -> list[RequestOutput]:
    """Generate text for one prompt or many: `LLM(...).generate(...)` in one call.

    The engine is kept, so that the next call with the same options starts at once. Other options close it and make
    another; `close()` closes it.

    Args:
        prompts: See `LLM.generate`.
        sampling_params: See `LLM.generate`.
        options: Keywords of `LLM` (`model=...` first of all) and of `LLM.generate`.

    Returns:
        One result per prompt, in order.

    Raises:
        RequestError: A prompt or its parameters are wrong; see `LLM.generate`.
        TypeError: An option is unknown.
        ConfigError: An option is wrong or does not fit, or the checkpoint cannot be loaded.
    """
    call = {name: options.pop(name) for name in _CALL_NAMES if name in options}
    if "llm" not in _kept or _kept["made_with"] != options or not _kept["llm"].is_usable:
        read_options(options)  # a typing error costs no engine
        close()
        _kept.update(llm=LLM(**options), made_with=options)
    outputs: list[RequestOutput] = _kept["llm"].generate(prompts, sampling_params, **call)
    return outputs


def close() -> None:
    """Close the engine that `generate` keeps, if there is one."""
    if "llm" in _kept:
        _kept.pop("llm").close()
        _kept.clear()
