"""accounts: every stored tensor has its place, and every place its tensor."""

from collections.abc import Sequence

from nanofn.device.stored import Source
from nanofn.device.tensor_names import HEAD, Parameter, is_known_surplus
from nanofn.errors import CheckpointError, UnsupportedModelError
from nanofn.model.config import ModelConfig

_MAX_NAMED = 8
_PACKED = (".qweight", ".qzeros", ".weight_packed", ".weight_scale", ".weight_scale_inv", ".SCB", ".absmax")
"""Ends of names that only quantised formats have: GPTQ, AWQ, compressed-tensors, fp8 with scales, bitsandbytes."""


def check_accounts(config: ModelConfig, parameters: Sequence[Parameter], source: Source) -> None:
    """Raise unless the stored tensors are exactly those that the config asks for.

    Raises:
        UnsupportedModelError: The weights are packed, or stored in a dtype that cannot be read.
        CheckpointError: Tensors are missing, surplus or misshapen: all are named.
    """
    stored = source.stored
    wanted = {part.name: part.shape for parameter in parameters for part in parameter.sources}
    missing = [name for name in wanted if name not in stored]
    surplus = [name for name in stored if name not in wanted and not is_known_surplus(config, name)]
    if packed := [name for name in surplus if name.endswith(_PACKED)]:
        raise UnsupportedModelError(
            f"{source.path} holds quantised weights ({packed[0]} and {len(packed) - 1} more), which are not supported; "
            "use a float32, bfloat16 or float16 checkpoint, or a GGUF file"
        )
    misshapen = [
        f"{name} has {list(stored[name].shape)} and needs {list(shape)}"
        for name, shape in wanted.items()
        if name in stored and stored[name].shape != shape
    ]
    found = [
        f"{kind}: {', '.join(names[:_MAX_NAMED])}"
        + (f" and {len(names) - _MAX_NAMED} more" * (len(names) > _MAX_NAMED))
        for kind, names in (
            (f"missing {len(missing)} of {len(wanted)} tensors", missing),
            (f"surplus {len(surplus)}", surplus),
            (f"misshapen {len(misshapen)}", misshapen),
        )
        if names
    ]
    if found:
        advice = (
            "set tie_word_embeddings to true in config.json if the head is the embedding"
            if missing == [HEAD]
            else "config.json and the weights must come from the same checkpoint, complete"
        )
        raise CheckpointError(
            f"the weights in {source.path} do not match its config.json: {'; '.join(found)}; {advice}"
        )
    for name in wanted:
        if stored[name].dtype not in source.dtypes:
            raise UnsupportedModelError(
                f"{name} is stored as {stored[name].dtype}, which is not supported; supported are "
                f"{', '.join(sorted(source.dtypes))}"
            )


def check_sizes(config: ModelConfig, source: Source) -> None:
    """Raise where the config has more layers or experts than there are tensors: before a list of them is made.

    Raises:
        CheckpointError: It has.
    """
    sizes = {"num_hidden_layers": config.num_layers}
    if config.experts is not None:
        num_mixtures = config.experts.num_mixtures(config.num_layers)
        sizes |= {
            "num_experts": config.experts.num_experts,
            f"num_experts {config.experts.num_experts} in {num_mixtures} layers, in all": (
                config.experts.num_experts * num_mixtures
            ),
        }
    for name, size in sizes.items():
        if size > len(source.stored):
            raise CheckpointError(
                f"config.json has {name} {size}, and {source.path} holds {len(source.stored)} tensors; they must come "
                "from the same checkpoint, complete"
            )
