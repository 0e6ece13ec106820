"""A model hub of one process: serves a folder as one repository, and refuses others as a real hub does."""

import hashlib
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REFUSALS = {"gated": (403, "GatedRepo"), "missing": (404, "RepoNotFound"), "broken": (500, "")}


class Hub(ThreadingHTTPServer):
    """Serves `owner/model`, and refuses `owner/gated`, `owner/missing`, `owner/broken`.

    Attributes:
        folder: What `owner/model` holds.
        served: Files that were downloaded, in order.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.served: list[str] = []
        Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """What HF_ENDPOINT should be."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    """The few answers that a download needs."""

    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        """Describe a file."""
        self.answer(is_head=True)

    def do_GET(self) -> None:
        """Describe the repository, or send a file."""
        self.answer(is_head=False)

    def answer(self, *, is_head: bool) -> None:
        """Find what the path means."""
        parts = self.path.partition("?")[0].strip("/").split("/")
        is_api = parts[:2] == ["api", "models"]
        name, rest = (parts[3], parts[4:]) if is_api else (parts[1], parts[2:])
        revision = rest[1] if len(rest) > 1 else "main"
        if name in REFUSALS:
            self.refuse(*REFUSALS[name])
        elif revision not in {"main", COMMIT}:
            self.refuse(404, "RevisionNotFound")
        elif is_api:
            self.send_api(rest)
        else:
            self.send_file("/".join(rest[2:]), is_head=is_head)

    def refuse(self, status: int, code: str) -> None:
        """Answer with an error."""
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def send_api(self, rest: list[str]) -> None:
        """List the files, as the repository's facts or as a tree."""
        names = sorted(path.relative_to(self.server.folder).as_posix() for path in self.server.folder.rglob("*.*"))
        sizes = {name: (self.server.folder / name).stat().st_size for name in names}
        tree = [{"type": "file", "path": name, "size": size, "oid": "0" * 40} for name, size in sizes.items()]
        facts = {"id": "owner/model", "sha": COMMIT, "siblings": [{"rfilename": name} for name in names]}
        body = json.dumps(tree if rest[:1] == ["tree"] else facts).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_file(self, name: str, *, is_head: bool) -> None:
        """Send a file, or what it would be."""
        path = self.server.folder / name
        if not path.is_file():
            self.refuse(404, "EntryNotFound")
            return
        data = path.read_bytes()
        self.send_response(200)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if not is_head:
            self.server.served.append(name)
            self.wfile.write(data)
