"""Plant a bug into the real source, for as long as a `with` block lasts."""

import sys
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path

from attrs import frozen

import nanofn

SOURCE = Path(nanofn.__file__).parent
RELOADED = ("nanofn.", "core.")
"""Modules that are loaded anew around a planted bug: the engine, and the test helpers that hold parts of it."""


@frozen
class Bug:
    """A change of one file's text.

    Attributes:
        name: What goes wrong.
        file: Path below `src/nanofn`.
        old: Text that occurs exactly once.
        new: What the bug makes of it.
        report: Where an engine had it: the address of a public report.
    """

    name: str
    file: str
    old: str
    new: str
    report: str = ""

    def apply(self, text: str) -> str:
        """Patch a file's text; an error if the text to patch is not there exactly once."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.old!r} occurs {text.count(self.old)} times in {self.file}")
        return text.replace(self.old, self.new)


class _PatchedLoader(SourceFileLoader):
    def __init__(self, name, path, bug):
        super().__init__(name, path)
        self.bug = bug

    def get_code(self, fullname):
        path = self.get_filename(fullname)
        return compile(self.bug.apply(Path(path).read_text(encoding="utf-8")), path, "exec")


class _Finder(MetaPathFinder):
    def __init__(self, bug):
        self.bug = bug
        self.module = "nanofn." + bug.file.removesuffix(".py").replace("/", ".")

    def find_spec(self, fullname, path=None, target=None):
        if fullname != self.module:
            return None
        file = str(SOURCE / self.bug.file)
        return spec_from_file_location(fullname, file, loader=_PatchedLoader(fullname, file, self.bug))


@contextmanager
def planted(bug):
    """Import inside the block to get the engine with the bug in it; outside, everything is as before."""
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith(RELOADED)}
    package = dict(vars(nanofn))
    finder = _Finder(bug)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.startswith(RELOADED)]:
            del sys.modules[name]
        sys.modules.update(kept)
        vars(nanofn).update(package)
