"""The page in a browser: it loads, follows what happens, and can be used. `make test-page`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from branchline.gateway.app import create_app
from branchline.gateway.server import serving
from branchline.gateway.settings import Settings

from .watched import EVIL, Watched

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .browser import Tab

pytestmark = pytest.mark.page

BAR = (
    "[...document.querySelectorAll('#tree g:not(.dust)')].find(g => g.textContent.startsWith('{}'))"
)
MIDDLE = "(() => {{ const box = {}.getBoundingClientRect(); return [box.x + 9, box.y + 9] }})()"
WIDTH = "{}.querySelector('rect').getBoundingClientRect().width"
UPDATES = "Number(document.documentElement?.dataset.updates)"


@pytest.fixture
def source() -> Watched:
    return Watched()


@pytest.fixture
def keys() -> tuple[str, ...]:
    """Those that the gateway takes; none: it asks for none."""
    return ()


@pytest.fixture
def page(tab, source, keys) -> Iterator[Tab]:
    """The page over the source, once it has drawn for the first time or asks for a key."""
    with serving(create_app(source, Settings(api_keys=keys))) as server:
        tab.resize(1300, 1000)
        tab.open(server.url)
        tab.wait(f"{UPDATES} > 0 || document.getElementById('key')?.hidden === false")
        yield tab
        tab.leave()


def text(page: Tab, where: str) -> str:
    return page.value(f"document.querySelector('{where}').innerText")


def test_it_follows_what_happens_without_an_error(page) -> None:
    page.wait(f"{UPDATES} >= 3")
    assert page.errors == []
    assert text(page, "#model").startswith("toy, up 10")
    assert page.value("document.title") == "20 running · Branchline"
    cards = text(page, "#charts")
    # Of the source's 4,000 prompt tokens a second 3,000 are cached; 250 are written.
    for said in ("20 running 2 waiting", "250 tokens/s", "75 %", "75 ms", "15 ms"):
        assert said in cards.replace("\n", " ").replace("  ", " "), cards
    assert text(page, "#requests-text").startswith("20 running, 2 waiting · 90 % within")
    before = text(page, "#requests")
    page.wait(f"document.querySelector('#requests').innerText !== {before!r}")


def test_what_users_wrote_is_never_markup(page) -> None:
    page.wait(f"{UPDATES} >= 2")
    page.point(*page.value(MIDDLE.format(BAR.format("<scr"))))
    assert text(page, "#node pre") == EVIL
    assert EVIL in text(page, "#requests")
    assert page.value("document.querySelectorAll('img, script').length") == 1  # the page's own
    assert page.value("window.hurt") is None
    assert page.errors == []


def test_a_bar_is_as_wide_as_what_is_below_it(page) -> None:
    whole, chat = (page.value(WIDTH.format(BAR.format(said))) for said in ("Be brief.", "<scr"))
    # 300 tokens and four chats of 150 or a little more; the bars move for a moment.
    page.wait(f"{WIDTH.format(BAR.format('Be brief.'))} > 0")
    assert 5.5 < whole / chat < 6.1


def test_zooming_with_the_pointer_and_the_keyboard(page) -> None:
    whole = page.value("document.getElementById('tree').clientWidth")
    chat = BAR.format("<scr")
    wide = f"Math.abs({WIDTH.format(chat)} - {whole}) < 1"
    assert not page.value(wide)
    page.point(*page.value(MIDDLE.format(chat)), click=True)
    page.wait(wide)
    assert "An old one." not in text(page, "#tree")
    page.press("Escape")
    page.press("Escape")
    page.wait("document.querySelector('#tree').textContent.includes('An old one.')")

    page.value("document.getElementById('tree').focus()")
    page.press("ArrowUp")
    page.press("ArrowRight")
    assert text(page, "#node pre") == "An old one."
    assert "under a cache salt" in text(page, "#node p")
    page.press("Enter")
    page.wait(f"Math.abs({WIDTH.format(BAR.format('An old'))} - {whole}) < 1")
    assert page.errors == []


def test_a_request_shows_what_it_holds(page) -> None:
    row = "document.querySelector('#requests tr')"
    page.value(f"{row}.scrollIntoView({{block: 'center'}})")
    page.point(*page.value(MIDDLE.format(row)))
    marked = "[...document.querySelectorAll('#tree .marked')]"
    page.wait(f"{marked}.length")
    tops = page.value(f"{marked}.map(bar => bar.getBoundingClientRect().top)")
    texts = page.value(f"{marked}.map(bar => bar.textContent.slice(0, 4))")
    assert texts == ["Be b", "<scr", ""]  # the answer's bar is too thin for words
    assert tops[0] < tops[1] < tops[2]


def test_a_runtime_that_is_away_is_told_and_found_again(page, source) -> None:
    source.away = "lost the runtime: <b>gone</b>"
    page.wait("document.getElementById('banner').innerText === 'lost the runtime: <b>gone</b>'")
    source.away = None
    page.wait("document.getElementById('banner').hidden")
    assert text(page, "#status") == "live"


def test_pausing(page) -> None:
    page.value("document.getElementById('pause').click()")
    time.sleep(0.2)  # for a picture that was on its way
    updates = page.value(UPDATES)
    time.sleep(1.5)
    assert (page.value(UPDATES), text(page, "#status")) == (updates, "paused")
    page.value("document.getElementById('pause').click()")
    page.wait(f"{UPDATES} > {updates}")


class TestKeys:
    @pytest.fixture
    def keys(self) -> tuple[str, ...]:
        return ("secret",)

    def test_the_key_is_asked_for_and_sent(self, page) -> None:
        assert page.value(UPDATES) is None
        page.value("document.getElementById('key-value').value = 'wrong'")
        page.value("document.getElementById('key').requestSubmit()")
        page.wait("document.getElementById('banner').innerText.includes('not one of the gateway')")
        page.value("document.getElementById('key-value').value = 'secret'")
        page.value("document.getElementById('key').requestSubmit()")
        page.wait(f"{UPDATES} > 0")
        assert page.value("document.getElementById('key').hidden")
