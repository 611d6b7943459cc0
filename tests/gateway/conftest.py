"""A gateway over a scripted backend, OpenAI's client of it, and a browser."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import openai
import pytest

from tests.gateway.browser import browsing
from tests.gateway.scripted import Scripted, gateway

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gateway.browser import Tab


@pytest.fixture(scope="module")
def scripted() -> Iterator[tuple[Scripted, str]]:
    backend = Scripted()
    with gateway(backend) as url:
        yield backend, url


@pytest.fixture
def backend(scripted: tuple[Scripted, str]) -> Scripted:
    scripted[0].asked.clear()
    scripted[0].script = []
    return scripted[0]


@pytest.fixture
def url(scripted: tuple[Scripted, str]) -> str:
    return scripted[1]


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url + "/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture(scope="session")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    """A browser's tab, for tests that are marked `page`."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.fail("there is no Chromium; `make test-page` installs Debian's")
    with browsing(program, tmp_path_factory.mktemp("browser") / "profile") as tab:
        yield tab
