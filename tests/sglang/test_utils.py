"""`sglang.utils`, chat templates, tokenizers, reasoning, servers: what benchmarks use besides."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import pytest

import branchline as bl
import branchline.sglang as sgl
from branchline.sglang import chat_templates, servers, utils
from branchline.sglang.chat_templates import (
    ChatTemplate,
    ChatTemplateStyle,
    get_chat_template,
    get_chat_template_by_model_path,
)
from branchline.sglang.reasoning_parser import ReasoningParser
from branchline.sglang.server_args import ServerArgs
from branchline.sglang.tokenizers import get_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# ------------------------------------------------------------------------------------- files


def test_read_jsonl(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text('{"a": 1}\n# skipped\n\n[2]\n', encoding="utf-8")
    lines = utils.read_jsonl(str(path))
    assert list(lines) == [{"a": 1}, [2]]
    assert lines[:1] == [{"a": 1}], "old benchmarks slice it"


def test_dump_state_text(tmp_path: Path) -> None:
    @sgl.function
    def program(s, text):
        s += text

    path = str(tmp_path / "states.txt")
    states = program.run_batch([{"text": "first"}, {"text": "second"}], backend=bl.Mock())
    utils.dump_state_text(path, states)
    utils.dump_state_text(path, ["a text"], mode="a")
    written = (tmp_path / "states.txt").read_text()
    blocks = [block.split("\n")[1] for block in written.split("\n\n") if block]
    assert blocks == ["first", "second", "a text"]


def test_encode_image_base64(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"\x89PNG")
    assert (
        utils.encode_image_base64(str(path)) == utils.encode_image_base64(b"\x89PNG") == "iVBORw=="
    )


def test_lazy_import() -> None:
    lazy = utils.LazyImport("collections", "Counter")
    assert lazy("aab")["a"] == 2
    assert lazy.fromkeys is not None
    assert not isinstance(lazy, type)


# -------------------------------------------------------------------------------------- HTTP


class Echo(BaseHTTPRequestHandler):
    """Says what it was sent, or for `/lines` three lines, or for `/bad` that it is bad."""

    def do_GET(self) -> None:
        body = b"one\ntwo\nthree" if self.path == "/lines" else b'{"method": "GET"}'
        self.send_response(404 if self.path == "/bad" else 200)
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers["Content-Length"]))
        said = {"sent": json.loads(sent), "key": self.headers.get("Authorization")}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(said).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Echo)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_http_request(url: str) -> None:
    with utils.http_request(url) as answer:
        assert (answer.status_code, answer.json()) == (200, {"method": "GET"})
    with utils.http_request(url, json={"a": [1]}, api_key="k") as answer:
        assert answer.json() == {"sent": {"a": [1]}, "key": "Bearer k"}
    with utils.http_request(f"{url}/lines", stream=True) as answer:
        assert list(answer.iter_lines(chunk_size=3)) == [b"one", b"two", b"three"]
    with utils.http_request(f"{url}/bad") as answer:
        assert answer.status_code == 404


def test_a_download_is_kept(url: str, tmp_path: Path) -> None:
    path = str(tmp_path / "lines.txt")
    assert utils.download_and_cache_file(f"{url}/lines", path) == path
    assert (tmp_path / "lines.txt").read_text() == "one\ntwo\nthree"
    (tmp_path / "lines.txt").write_text("mine")
    utils.download_and_cache_file(f"{url}/lines", path)
    assert (tmp_path / "lines.txt").read_text() == "mine"


# --------------------------------------------------------------------------------- templates

TALK = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "U"},
    {"role": "assistant", "content": "A"},
    {"role": "user", "content": "V"},
]


CONVERSATIONS = {
    "default": "SYSTEM:S\nUSER:U\nASSISTANT:A\nUSER:V\n",
    "chatml": (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n"
        "<|im_start|>assistant\nA<|im_end|>\n<|im_start|>user\nV<|im_end|>\n"
    ),
    "llama-2-chat": "[INST] <<SYS>>\nS\n<</SYS>>\n\nU [/INST]A </s><s>[INST] V [/INST]",
    "llama-3-instruct": (
        "<|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nA<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nV<|eot_id|>"
    ),
    "gemma-it": (
        "S<start_of_turn>user\nU<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n"
        "<start_of_turn>user\nV<end_of_turn>\n"
    ),
    "deepseek-v3": "S<｜User｜>U<｜Assistant｜>A<｜end▁of▁sentence｜><｜User｜>V",
}


@pytest.mark.parametrize(("name", "text"), CONVERSATIONS.items())
def test_a_conversation_by_a_named_template(name: str, text: str) -> None:
    assert get_chat_template(name).get_prompt(TALK) == text


ALL_NAMES = (
    "default claude chatml chatml-llava qwen qwen2-vl vicuna_v1.1 llama-2-chat llama-3-instruct "
    "llama-3-instruct-llava llama-4 minicpmv minicpmo janus-pro yi-1.5 yi-vl gemma-it "
    "dbrx-instruct c4ai-command-r granite-3-instruct deepseek-v3"
)


@pytest.mark.parametrize("name", ALL_NAMES.split())
def test_every_template_is_there(name: str) -> None:
    template = get_chat_template(name)
    if template.style is ChatTemplateStyle.PLAIN:
        ours = template.for_runtime()
        assert ours.prefix.keys() == ours.suffix.keys() == {"system", "user", "assistant"}
        if template.default_system_prompt:
            assert template.default_system_prompt in (ours.default_system or "")
    else:
        with pytest.raises(bl.InvalidRequest, match="leave the name out"):
            template.for_runtime()


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-chat"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "llama-2-chat"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3-instruct"),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "llama-4"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen"),
        ("Qwen/Qwen2-VL-7B-Instruct", "qwen2-vl"),
        ("google/gemma-2-9b-it", "gemma-it"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
        ("lmsys/vicuna-7b-v1.5", "vicuna_v1.1"),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "chatml"),
        ("meta-llama/Llama-3.1-8B", "default"),
        ("unheard/of", "default"),
    ],
)
def test_a_template_by_the_models_path(path: str, name: str) -> None:
    assert get_chat_template_by_model_path(path).name == name


def test_own_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_templates, "_templates", dict(chat_templates._templates))
    monkeypatch.setattr(chat_templates, "_matches", list(chat_templates._matches))
    mine = ChatTemplate("mine", "Be good.", {"user": ("<", ">")}, stop_str=(">",))
    chat_templates.register_chat_template(mine)

    @chat_templates.register_chat_template_matching_function
    def match(path: str) -> str | None:
        return "mine" if "my-model" in path else None

    assert get_chat_template_by_model_path("a/my-model") is mine
    assert get_chat_template("mine").get_prefix_and_suffix("user", []) == ("<", ">")
    with pytest.raises(bl.InvalidRequest, match="yours"):
        get_chat_template("yours")


# -------------------------------------------------------------------- tokenizers and reasoning


@pytest.mark.usefixtures("words")
def test_tokenizer() -> None:
    tokenizer = get_tokenizer("any model")
    ids = tokenizer.encode("a b a")
    assert ids == tokenizer("a b a").input_ids == tokenizer("a b a")["input_ids"]
    assert tokenizer(["a", "b a"]).input_ids == [ids[:1], ids[1:]]
    assert tokenizer.decode(ids) == "a b a"
    assert tokenizer.decode(ids[0]) == "a"
    assert len(tokenizer) == 1000
    talk = [{"role": "user", "content": "a b"}]
    assert tokenizer.apply_chat_template(talk, tokenize=False) == "a b"
    assert tokenizer.apply_chat_template(talk) == ids[:2]


def test_without_a_tokenizer() -> None:
    with pytest.raises(bl.InvalidRequest, match="branchline run"):
        get_tokenizer("any model")


def test_reasoning_parser() -> None:
    parser = ReasoningParser("qwen3")
    text = "<think>so</think>\n\nfour"
    assert parser.parse_non_stream(text) == ("so", "four")
    streamed = [parser.parse_stream_chunk(character) for character in text]
    assert ("".join(a for a, _ in streamed), "".join(b for _, b in streamed)) == ("so", "four")
    whole = ReasoningParser("Qwen3", stream_reasoning=False)
    chunks = [whole.parse_stream_chunk(character) for character in text]
    assert [chunk for chunk in chunks if chunk[0]] == [("so", "f")]
    with pytest.raises(bl.InvalidRequest, match="unheard"):
        ReasoningParser("unheard")


# ----------------------------------------------------------------------------------- servers


def test_server_args() -> None:
    args = ServerArgs(
        "smollm2",
        context_length=2048,
        port=30000,
        dtype="auto",
        tp_size=1,
        disable_radix_cache=True,
    )
    assert args.settings() == {"model": "smollm2", "max_context": 2048, "cache": False}
    assert (args.model_path, args.port) == ("smollm2", 30000)
    for wrong in ({"tp_size": 2}, {"speculative_algorithm": "EAGLE"}):
        with pytest.raises(bl.InvalidRequest, match=next(iter(wrong))):
            ServerArgs("smollm2", **wrong)


class Started:
    """What `Runtime` makes of its arguments, without a process."""

    pid = 7

    def __init__(self, **arguments: object) -> None:
        self.arguments = arguments
        self.endpoint = sgl.RuntimeEndpoint.__mro__[1](bl.Mock("I was launched"))
        self.ended = False

    def shutdown(self) -> None:
        self.ended = True


def test_a_notebooks_server(monkeypatch: pytest.MonkeyPatch, mock: Callable[..., bl.Mock]) -> None:
    monkeypatch.setattr(servers, "Runtime", Started)
    with pytest.raises(bl.RuntimeUnavailable, match="30001"):
        utils.wait_for_server("http://localhost:30001")
    command = "python -m sglang.launch_server --model-path smollm2 --host 0.0.0.0 --tp 1 \\\n"
    command += "  --trust-remote-code --mem-fraction-static=0.5"
    server, port = utils.launch_server_cmd(command)
    utils.wait_for_server(f"http://localhost:{port}")

    @sgl.function
    def ask(s):
        s += "Who are you? " + sgl.gen("x")

    sgl.set_default_backend(sgl.RuntimeEndpoint(f"http://localhost:{port}"))
    assert ask.run()["x"] == "I was launched"
    assert server._runtime.arguments == {
        "model_path": "smollm2",
        "host": "0.0.0.0",
        "tp_size": 1,
        "trust_remote_code": True,
        "mem_fraction_static": 0.5,
    }
    utils.terminate_process(server)
    assert server._runtime.ended
    with pytest.raises(bl.RuntimeUnavailable):
        utils.wait_for_server(f"http://localhost:{port}")
    with pytest.raises(bl.InvalidRequest, match="--model-path"):
        utils.launch_server_cmd("python -m sglang.launch_server --port 1")
