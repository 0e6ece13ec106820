"""How a checkpoint stretches its rotary frequencies for longer texts, as `config.json` says it."""

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from nanofn.errors import CheckpointError, UnsupportedModelError
from nanofn.model.config_values import flag, positive


@frozen(kw_only=True)
class LinearScaling:
    """Every angle is divided: Chen et al. 2023, arXiv:2306.15595.

    Attributes:
        factor: By what.
    """

    factor: float


@frozen(kw_only=True)
class Llama3Scaling:
    """Slow frequencies are divided, fast ones kept, those between blended: Llama 3, arXiv:2407.21783.

    Attributes:
        factor: By what slow frequencies are divided.
        low_freq_factor: Wavelengths above original_max_position_embeddings / this are slow.
        high_freq_factor: Wavelengths below original_max_position_embeddings / this are fast; above low_freq_factor.
        original_max_position_embeddings: Longest text before the stretching.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: float


@frozen(kw_only=True)
class YarnScaling:
    """As Llama 3's, the blend being linear in the frequency's index: Peng et al. 2023, arXiv:2309.00071.

    Attributes:
        factor: By what slow frequencies are divided.
        original_max_position_embeddings: Longest text before the stretching.
        beta_fast: A frequency that turns more often than this within such a text is kept.
        beta_slow: One that turns less often is divided.
        attention_factor: What cosines and sines are multiplied by; None follows from `factor`, or from the two below.
        mscale: Weight of the logarithm in the numerator, where `mscale_all_dim` is given as well.
        mscale_all_dim: The same in the denominator.
        truncate: The blend begins and ends at whole indexes.
    """

    factor: float
    original_max_position_embeddings: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling

MAX_POSITIONS = 1 << 24
"""fp32 counts no further one by one, so a stretched length ends here."""

_SUPPORTED = ("default", "linear", "llama3", "yarn")


@frozen
class RopeFacts:
    """What `config.json` says of rotation.

    Attributes:
        theta: Base of the frequencies.
        scaling: How they are stretched, or None.
        max_position_embeddings: Longest text that the checkpoint is meant for, the stretching included.
    """

    theta: float
    scaling: RopeScaling | None
    max_position_embeddings: int


def read_rope(config_json: Mapping[str, Any], max_position_embeddings: int) -> RopeFacts:
    """Read rotation from `rope_parameters` (transformers 5) or from `rope_scaling` and `rope_theta` (4).

    Where both are given, one may stretch and the other may give the base, as when a file that transformers 5 wrote is
    edited by hand.

    Args:
        config_json: The parsed file.
        max_position_embeddings: Its own.

    Raises:
        UnsupportedModelError: A kind of scaling that is not covered. It is named.
        CheckpointError: A number is missing, out of range or contradicts another.
    """
    merged: dict[str, Any] = {"rope_theta": config_json.get("rope_theta", 10_000.0)}
    scaled: list[dict[str, Any]] = []
    for key in ("rope_scaling", "rope_parameters"):
        given = config_json.get(key) or {}
        if not isinstance(given, Mapping):
            raise CheckpointError(f"{key} in config.json is {given!r}; it must be an object")
        merged |= given
        if _rope_type(given) != "default":
            scaled.append({name: value for name, value in given.items() if name != "rope_theta"})
    _refuse_uncovered(merged, config_json)
    theta = positive(merged, "rope_theta")
    if not scaled:
        return RopeFacts(theta, None, max_position_embeddings)
    if any(other != scaled[0] for other in scaled[1:]):
        raise CheckpointError("rope_scaling and rope_parameters in config.json stretch differently; keep one of them")
    original = config_json.get("original_max_position_embeddings")  # where it is beside them, it wins in transformers
    if original is None:
        original = scaled[0].get("original_max_position_embeddings") or max_position_embeddings
    scaling = _read_scaling(scaled[0] | {"original_max_position_embeddings": original}, theta)
    return RopeFacts(theta, scaling, _stretched(scaling, max_position_embeddings))


def _rope_type(given: Mapping[str, Any]) -> Any:
    return given.get("rope_type", given.get("type", "default"))


def _refuse_uncovered(rope: Mapping[str, Any], config_json: Mapping[str, Any]) -> None:
    if any(isinstance(value, Mapping) for value in rope.values()):
        raise UnsupportedModelError("rope_parameters differ by layer type, which is not supported")
    for source in (rope, config_json):
        if source.get("partial_rotary_factor", 1.0) != 1.0:
            raise UnsupportedModelError(
                f"partial_rotary_factor {source['partial_rotary_factor']} is not supported; supported is 1.0"
            )


def _read_scaling(given: Mapping[str, Any], theta: float) -> RopeScaling:
    match kind := _rope_type(given):
        case "linear":
            return LinearScaling(factor=positive(given, "factor"))
        case "llama3":
            names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
            llama3 = Llama3Scaling(**{name: positive(given, name) for name in names})
            if llama3.high_freq_factor <= llama3.low_freq_factor:
                raise CheckpointError(
                    f"config.json has high_freq_factor {llama3.high_freq_factor}; it must be above low_freq_factor "
                    f"{llama3.low_freq_factor}"
                )
            return llama3
        case "yarn":
            if theta <= 1:
                raise CheckpointError(f"config.json has rope_theta {theta}; YaRN needs a base above 1")
            optional = ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim")
            return YarnScaling(
                factor=positive(given, "factor"),
                original_max_position_embeddings=positive(given, "original_max_position_embeddings"),
                truncate=flag(given, "truncate", True),
                **{name: positive(given, name) for name in optional if given.get(name)},
            )
        case _:
            raise UnsupportedModelError(f"rope type {kind!r} is not supported; supported are {', '.join(_SUPPORTED)}")


def _stretched(scaling: RopeScaling, max_position_embeddings: int) -> int:
    """Tell how long a text may be. Checkpoints differ in whether max_position_embeddings counts the stretching."""
    match scaling:
        case LinearScaling():
            stretched = max_position_embeddings * scaling.factor
        case YarnScaling():
            stretched = scaling.original_max_position_embeddings * scaling.factor
        case _:
            return max_position_embeddings
    return max(max_position_embeddings, int(min(stretched, MAX_POSITIONS)))
