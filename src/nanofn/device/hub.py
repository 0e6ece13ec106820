"""hub: a repository's checkpoint, downloaded once and kept in the cache that other programs use (`HF_HOME`)."""

import re
from pathlib import Path

from nanofn.errors import GatedModelError, HubUnreachableError, MissingModelError

WEIGHTS = ("*.safetensors", "model.safetensors.index.json")
"""What is downloaded of weights: no other formats."""

FILES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "vocab.json",
    "merges.txt", "tokenizer.model",
)  # fmt: skip
"""What is downloaded besides: configs and tokenizer, no code."""

LEFT_OUT = ("*/*", "consolidated*")
"""What is not, all the same: folders of other formats, and Mistral's second copy of the weights."""

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def is_hub_name(name: str) -> bool:
    """Whether a text has the form `owner/name`."""
    return _NAME.fullmatch(name) is not None


def fetch_from_hub(name: str, revision: str | None = None, *, with_weights: bool = True) -> Path:
    """Bring a repository's checkpoint into the local cache. HF_TOKEN or a stored login, and HF_HUB_OFFLINE, count.

    Args:
        name: As `owner/name`.
        revision: A branch, tag or commit; None is the main branch.
        with_weights: Whether those are wanted too.

    Returns:
        Its folder in the cache.

    Raises:
        GatedModelError: The hub wants to know who asks, or has not let them in.
        MissingModelError: There is no such repository or revision.
        HubUnreachableError: The hub does not answer or is not to be asked, and the cache lacks the checkpoint.
    """
    from huggingface_hub import errors, snapshot_download  # noqa: PLC0415  half a second, which only hub names cost

    what = name if revision is None else f"{name} at revision {revision}"
    try:
        return Path(
            snapshot_download(
                name,
                revision=revision,
                allow_patterns=[*FILES, *(WEIGHTS if with_weights else ())],
                ignore_patterns=list(LEFT_OUT),
                library_name="nanofn",
            )
        )
    except errors.GatedRepoError as error:
        raise GatedModelError(
            f"{what} is gated: accept its terms on the hub, then log in with `hf auth login` or set HF_TOKEN"
        ) from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError) as error:
        raise MissingModelError(
            f"there is neither a folder {name} nor {what} on the hub; check the name, or log in with `hf auth login` if it "
            "is private"
        ) from error
    except Exception as error:  # the connection's own errors have no common base
        raise HubUnreachableError(
            f"{what} is not in the cache, and the hub cannot be asked ({_first_line(error)}); check the connection and "
            "HF_HUB_OFFLINE, or give a local folder"
        ) from error


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
