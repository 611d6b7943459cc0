"""The page as it is sent, and the picture that it draws. What it does is in test_browser.py."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from branchline.gateway.app import create_app
from branchline.gateway.live import Live
from branchline.gateway.page import STATIC, data_routes, page_routes
from branchline.gateway.settings import Settings
from branchline.gateway.traffic import Traffic

from .watched import EVIL, Watched


@pytest.fixture
def source() -> Watched:
    return Watched()


@pytest.fixture
def client(source) -> TestClient:
    app = FastAPI()
    app.include_router(page_routes())
    app.include_router(data_routes(source, Traffic()))
    return TestClient(app)


class Document(HTMLParser):
    """The elements of a page, the text of its style and scripts, and what it would fetch."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.inside: dict[str, list[str]] = {"style": [], "script": []}
        self.fetched: list[str] = []
        self.styled: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs) -> None:
        attributes = dict(attrs)
        self.ids |= {attributes["id"]} if "id" in attributes else set()
        self.fetched += [value for name, value in attrs if name in {"src", "href", "action"}]
        self.styled += [name for name in attributes if name == "style" or name.startswith("on")]

    def handle_data(self, data) -> None:
        if self.lasttag in self.inside:
            self.inside[self.lasttag].append(data)


def test_the_page_needs_nothing_else(client) -> None:
    page = Document(client.get("/").text)
    assert page.fetched == ["data:,", "metrics"]  # no icon, and a link for who has no scripts
    assert "://" not in "".join(page.inside["script"]).replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"@import|url\(", "".join(page.inside["style"]))


def test_the_policy_allows_the_pages_own_style_and_script_only(client) -> None:
    answer = client.get("/")
    page = Document(answer.text)
    policy = dict(
        part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; ")
    )
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    for kind in ("style", "script"):
        whole = re.search(rf"<{kind}[^>]*>(.*?)</{kind}>", answer.text, re.DOTALL)
        assert whole is not None
        digest = base64.b64encode(hashlib.sha256(whole[1].encode()).digest()).decode()
        assert policy[f"{kind}-src"] == f"'sha256-{digest}'"
    assert page.styled == []  # the policy would stop them


def test_a_key_opens_the_numbers_and_not_the_page(source) -> None:
    client = TestClient(create_app(source, Settings(api_keys=("secret",))))
    assert client.get("/").status_code == 200
    for path in ("/live", "/metrics"):
        assert client.get(path).status_code == 401
        assert client.get(path, headers={"Authorization": "Bearer secret"}).status_code == 200


def test_no_script_makes_markup_of_text() -> None:
    scripts = [file for file in STATIC.iterdir() if file.name.endswith(".js")]
    assert scripts
    for file in scripts:
        found = re.findall(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(",
            file.read_text(),
        )
        assert not found, file.name


def test_every_element_that_a_script_asks_for_is_there(client) -> None:
    page = Document(client.get("/").text)
    asked = set(re.findall(r"\bat\(\"([\w-]+)\"\)", "".join(page.inside["script"])))
    assert asked
    assert asked <= page.ids


def test_the_picture_is_the_runtimes(client, source) -> None:
    picture = client.get("/live").json()
    assert picture["up"] is True
    assert picture["info"]["model"] == "toy"
    assert picture["info"]["histograms"]["ttft"]["bounds"][0] == 0.01
    nodes = [
        dict(zip(picture["nodes"], values, strict=True))
        for values in zip(*picture["nodes"].values(), strict=True)
    ]
    assert len(nodes) == 26
    assert picture["total_nodes"] == 29
    assert nodes[1] == {
        "id": 1, "parent": 0, "start": 300, "length": 100, "subtree": 155, "users": 5, "idle": 0.0,
        "text": EVIL, "salted": False,
    }  # fmt: skip
    assert [request["state"] for request in picture["requests"]].count("running") == 20
    assert picture["requests"][7]["node"] == 22


def test_a_picture_serves_all_who_watch_for_a_second() -> None:
    source = Watched()

    async def watch(live: Live, times: int) -> set[bytes]:
        return set(await asyncio.gather(*(live.picture() for _ in range(times))))

    async def both() -> tuple[set[bytes], set[bytes]]:
        return await watch(Live(source, period=60), 50), await watch(Live(source, period=0), 3)

    shared, own = asyncio.run(both())
    assert (len(shared), len(own), source.looks) == (1, 3, 4)


def test_a_runtime_that_is_away_has_no_picture(client, source) -> None:
    source.away = "nobody listens there"
    answer = client.get("/live")
    assert (answer.status_code, answer.json()) == (
        200,
        {"up": False, "reason": "nobody listens there"},
    )


def test_a_runtime_that_is_silent_counts_as_away(monkeypatch) -> None:
    monkeypatch.setattr("branchline.gateway.live.PATIENCE", 0.01)

    class Silent(Watched):
        async def inspect(self, nodes: int):
            await asyncio.sleep(60)

    picture = json.loads(asyncio.run(Live(Silent()).picture()))
    assert picture == {"up": False, "reason": "the runtime was silent for 0.01 s"}
