"""What the documentation shows is what the code has: signatures, examples, links."""

import ast
import importlib
import inspect
import re
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from conventions.source import ROOT, label, tracked_files

PAGES = [path for path in tracked_files() if path.suffix == ".md"]
SIGNATURE = re.compile(r"`(nanofn(?:_kernels)?[\w.]*)\(([^()`]*)\)`")
TRANSITION = re.compile(r"^\| `\w+` \| `(\w+)\(([^()`]*)\)` \|", re.MULTILINE)
LINK = re.compile(r"\]\(([^()#\s]+)(?:#[^()\s]*)?\)")


def page(name: str) -> str:
    """A page of the documentation."""
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def find(dotted: str) -> Any:
    """What a dotted name means: the longest part that is a module, then attributes."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        return reduce(getattr, parts[length:], module)
    raise LookupError(dotted)


def arguments(function: Any) -> list[str]:
    """The names of a function's arguments, keyword-only ones left out."""
    parameters = inspect.signature(function).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY]


def documented() -> list[tuple[str, list[str]]]:
    """Every function that a page names with its full path, and every transition of the state machine's table."""
    found = [match.groups() for path in PAGES for match in SIGNATURE.finditer(path.read_text(encoding="utf-8"))]
    found += [(f"nanofn.schedule.{name}.{name}", list_) for name, list_ in TRANSITION.findall(page("state_machine.md"))]
    return [(name, [argument for argument in re.split(r",\s*", list_) if argument]) for name, list_ in found]


@pytest.mark.parametrize(("name", "shown"), documented(), ids=lambda value: value if isinstance(value, str) else "")
def test_a_documented_signature_is_the_real_one(name: str, shown: list[str]) -> None:
    """A function that a page shows exists, with these arguments in this order."""
    assert arguments(find(name)) == shown


def test_the_flow_and_the_transitions_are_documented() -> None:
    """The check above sees every transition and each stage of the flow."""
    names = {name for name, _ in documented()}
    for verb in ("admit", "plan", "commit", "abort", "stop", "hint", "reset_prefix_cache", "fail"):
        assert f"nanofn.schedule.{verb}.{verb}" in names
    for package in ("text", "llm", "batch", "device", "model", "sampling"):
        assert any(name.startswith(f"nanofn.{package}.") for name in names), package


@pytest.mark.parametrize("path", PAGES, ids=label)
def test_links_lead_somewhere(path: Path) -> None:
    """Every relative link of a page names a file or folder that is there."""
    targets = [target for target in LINK.findall(path.read_text(encoding="utf-8")) if "://" not in target]
    assert [target for target in targets if not (path.parent / target).exists()] == []


def examples() -> list[str]:
    """The README's Python examples."""
    return re.findall(
        r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


def test_the_readme_has_two_commands() -> None:
    """CI runs the README's commands: they are the only two blocks of bash, one line each."""
    blocks = re.findall(
        r"^```bash\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert [block.count("\n") for block in blocks] == [1, 1]


def test_the_readme_imports_what_exists() -> None:
    """Every import of an example works, and the first example fits on ten lines."""
    for example in examples():
        for node in ast.walk(ast.parse(example)):
            if isinstance(node, ast.ImportFrom):
                assert [alias.name for alias in node.names if not hasattr(find(node.module or ""), alias.name)] == []
    assert len([line for line in examples()[0].splitlines() if line]) <= 10


def test_the_readme_policy_decides() -> None:
    """The policy that the README shows grants tokens to whoever waits, shortest first."""
    from nanofn.config import Limits
    from nanofn.request import Request, RequestId, TokenId
    from nanofn.schedule.admit import admit
    from nanofn.schedule.plan import plan
    from nanofn.schedule.view import view
    from nanofn.state.engine_state import initial_state

    (shown,) = [example for example in examples() if "class " in example]
    names: dict[str, Any] = {}
    exec(shown.partition("\nllm =")[0], names)
    policy = names["Shortest"]()
    limits = Limits(block_size=4, num_blocks=64, max_num_seqs=4, max_num_batched_tokens=16, max_model_len=32)
    state = initial_state(limits)
    for number, max_tokens in enumerate((9, 3, 5)):
        request = Request(RequestId(number), (TokenId(1), TokenId(2)), max_tokens=max_tokens)
        state, _ = admit(state, request)
    _, decision = policy.decide(policy.init, view(state, 0, ()))
    assert [sequence_id for sequence_id, _ in decision.grants] == [1, 2, 0]
    _, step_plan = plan(state, decision)
    assert [entry.num_tokens for entry in step_plan.entries] == [2, 2, 2]
