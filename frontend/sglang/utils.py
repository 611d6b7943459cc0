"""What SGLang's benchmarks and notebooks use besides the language: `sglang.utils`."""

from __future__ import annotations

import base64
import importlib
import json as jsonlib
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from branchline.sglang.interpreter import ProgramState
from branchline.sglang.servers import launch_server_cmd, terminate_process, wait_for_server

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from http.client import HTTPResponse
    from typing import Self

__all__ = [
    "HttpResponse",
    "LazyImport",
    "download_and_cache_file",
    "dump_state_text",
    "encode_image_base64",
    "http_request",
    "launch_server_cmd",
    "print_highlight",
    "read_jsonl",
    "terminate_process",
    "wait_for_server",
]

RULE = 40  # characters of the line around a state's number


def read_jsonl(filename: str) -> list[Any]:
    """The values in a file of JSON lines; lines that start with # are comments."""
    with Path(filename).open(encoding="utf-8") as lines:
        return [jsonlib.loads(line) for line in lines if line.strip() and line[0] != "#"]


def dump_state_text(filename: str, states: Sequence[Any], mode: str = "w") -> None:
    """Write the texts of states, or texts, to a file, each under a line with its number."""
    with Path(filename).open(mode, encoding="utf-8") as out:
        for index, one in enumerate(states):
            text = one.text() if isinstance(one, ProgramState) else str(one)
            out.write(f"{'=' * RULE} {index} {'=' * RULE}\n{text}\n{'=' * 2 * RULE}\n\n")


def download_and_cache_file(url: str, filename: str | None = None) -> str:
    """The path of a file from the web, which is fetched unless it is there.

    Without a file name it is kept in the system's folder for temporary files.
    """
    if filename is None:
        name = Path(urllib.parse.urlsplit(url).path).name
        filename = str(Path(tempfile.gettempdir()) / name)
    path = Path(filename)
    if not path.is_file():
        part = path.with_suffix(path.suffix + ".part")
        with urllib.request.urlopen(url) as source, part.open("wb") as target:
            while chunk := source.read(1 << 20):
                target.write(chunk)
        part.rename(path)
    return filename


def print_highlight(html_content: object) -> None:
    """Print it; a notebook has its own ways to show it in bold."""
    print(html_content)


def encode_image_base64(image_path: str | bytes) -> str:
    """An image's bytes, or those of a file, as base64."""
    data = image_path if isinstance(image_path, bytes) else Path(image_path).read_bytes()
    return base64.b64encode(data).decode("ascii")


class HttpResponse:
    """An answer to `http_request`; closed by its end, or as a `with` block."""

    def __init__(self, response: HTTPResponse) -> None:
        self._response = response

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._response.close()

    @property
    def status_code(self) -> int:
        """The HTTP status."""
        return self._response.status

    def json(self) -> Any:
        """The body, read as JSON."""
        return jsonlib.loads(self._response.read())

    def iter_lines(self, chunk_size: int = 65536, delimiter: bytes = b"\n") -> Iterator[bytes]:
        """The body's lines, as they come."""
        rest = b""
        while chunk := self._response.read1(chunk_size):
            *lines, rest = (rest + chunk).split(delimiter)
            yield from lines
        if rest:
            yield rest


def http_request(
    url: str,
    json: Any = None,
    stream: bool = False,  # the body is read when it is asked for in any case
    api_key: str | None = None,
    verify: str | None = None,
    method: str | None = None,
) -> HttpResponse:
    """Send JSON, or with none ask, and give the answer, whatever its status.

    Raises:
        OSError: there is no answer.
    """
    headers = {"Content-Type": "application/json; charset=utf-8"}
    if api_key is not None:
        headers["Authorization"] = f"Bearer {api_key}"
    data = None if json is None else jsonlib.dumps(json).encode()
    request = urllib.request.Request(url, data, headers, method=method)
    context = None
    if verify is not None:
        import ssl

        context = ssl.create_default_context(cafile=verify)
    try:
        return HttpResponse(urllib.request.urlopen(request, context=context))
    except urllib.error.HTTPError as error:
        return HttpResponse(error)  # type: ignore[arg-type]


class LazyImport:
    """A class that is imported when it is first called or looked into; it is not a class itself."""

    def __init__(self, module_name: str, class_name: str) -> None:
        self.module_name = module_name
        self.class_name = class_name

    def _load(self) -> Any:
        return getattr(importlib.import_module(self.module_name), self.class_name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """An instance of the class."""
        return self._load()(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._load(), name)
