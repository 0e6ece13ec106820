"""load_policy: a policy by what a command line names it: a built-in one, or a file of one's own."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import nanofn.policy
from nanofn.errors import PolicyFileError
from nanofn.state.decision import Policy

BUILT_IN = ("fcfs", "prefill_first", "priority", "shortest_first", "fair", "longest_prefix", "guaranteed")


def load_policy(name: str) -> Policy[Any]:
    """Find a policy. A file is run, as by `python FILE`.

    Args:
        name: A built-in policy's name, or FILE.py, or FILE.py:NAME where the file holds several.

    Raises:
        PolicyFileError: There is no such file or name, the file does not run, or it holds no policy, or several.
    """
    if name in BUILT_IN:
        policy: Policy[Any] = getattr(nanofn.policy, name)
        return policy
    path, _, wanted = name.partition(":") if ":" in Path(name).name else (name, "", "")
    file = Path(path)
    if file.suffix != ".py":
        raise PolicyFileError(f"{name!r} is no policy; give a file FILE.py, or one of {', '.join(BUILT_IN)}")
    if not file.is_file():
        raise PolicyFileError(f"there is no file {path!r}")
    found = _policies(_run(file), file.stem)
    if wanted:
        if wanted not in found:
            raise PolicyFileError(f"{path} holds no policy named {wanted!r}; it holds {', '.join(found) or 'none'}")
        return found[wanted]
    if len(found) != 1:
        hint = (
            f"name one: {path}:{next(iter(found))}" if found else "a policy has `init` and `decide(policy_state, view)`"
        )
        raise PolicyFileError(f"{path} holds {len(found)} policies ({', '.join(found) or 'none'}); {hint}")
    return next(iter(found.values()))


def _run(file: Path) -> dict[str, Any]:
    module_name = f"nanofn_policy_{file.stem}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # attrs and dataclasses look their class's module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise PolicyFileError(f"{file} does not run: {type(error).__name__}: {error}") from error
    return vars(module)


def _policies(names: dict[str, Any], stem: str) -> dict[str, Policy[Any]]:
    """Keep what the file itself defines: instances, and classes that need no arguments."""
    found = {}
    for name, value in names.items():
        if name.startswith("_") or not callable(getattr(value, "decide", None)) or not hasattr(value, "init"):
            continue
        is_ours = (value if isinstance(value, type) else type(value)).__module__ == f"nanofn_policy_{stem}"
        is_imported = not isinstance(value, type) and any(value is getattr(nanofn.policy, each) for each in BUILT_IN)
        if isinstance(value, type):
            if is_ours and not any(type(other) is value for other in names.values()):
                found[name] = _instance(name, value)
        elif not is_imported:
            found[name] = value
    return found


def _instance(name: str, policy_class: type) -> Policy[Any]:
    try:
        policy: Policy[Any] = policy_class()
    except Exception as error:
        raise PolicyFileError(f"{name}() fails: {error}; make an instance in the file and give it a name") from error
    return policy
