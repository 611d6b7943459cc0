"""`state.trace()` and the page made of it: everything is there, and nothing of it is markup."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import branchline as bl
from branchline.collecting import collected
from branchline.trace import trace_of
from branchline.trace_page import fragment, page

VOID = {"meta", "br"}


class Page(HTMLParser):
    """Checks that tags are balanced; collects the text, by the class of what it stands in."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[tuple[str, str]] = []
        self.tags: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append((tag, dict(attrs).get("class") or ""))

    def handle_endtag(self, tag) -> None:
        assert self.open.pop()[0] == tag

    def handle_data(self, data) -> None:
        if self.open and self.open[-1][0] != "style":
            self.texts.setdefault(self.open[-1][1], []).append(data)

    @property
    def text(self) -> str:
        return "".join(text for texts in self.texts.values() for text in texts)


def run(body, mock=None, **arguments):
    return bl.function(body).run(backend=mock or bl.Mock("one two"), **arguments)


def lesson(s) -> None:
    s += bl.user("What?") + bl.assistant(bl.gen("x", temperature=0.5))
    branches = s.fork(2)
    branches += lambda i: f" {i}:" + bl.gen("y")
    branches[1] += bl.select("z", ["yes", "no"])
    branches.join()


def test_what_a_trace_says() -> None:
    state = run(lesson)
    trace = state.trace()
    assert (trace["format"], trace["program"], trace["model"]) == (1, "lesson", "mock")
    top = trace["state"]
    kinds = [step["kind"] for step in top["steps"]]
    roles = ["role", "text", "role_end", "role", "gen", "role_end"]
    assert kinds == [*roles, "fork", "join"]
    gen = top["steps"][4]
    assert (gen["name"], gen["text"], gen["value"]) == ("x", "one two", "one two")
    assert gen["settings"] == {"temperature": 0.5}
    assert gen["site"].startswith(__file__)
    assert top["began"] <= gen["began"] <= gen["ended"] <= top["ended"]
    (request,) = gen["requests"]
    meta = state.get_meta_info("x")
    assert request["rid"] == meta["id"]
    assert request["prompt_tokens"] == meta["prompt_tokens"]
    assert gen["meta"]["finish_reason"] == meta["finish_reason"]
    assert top["usage"]["requests"] == 4
    fork = top["steps"][6]
    assert [branch["branch"] for branch in fork["branches"]] == ["0.0", "0.1"]
    assert [s["kind"] for s in fork["branches"][1]["steps"]] == ["text", "gen", "select"]
    assert fork["branches"][1]["steps"][2]["settings"]["choices"] == ["yes", "no"]
    assert top["steps"][7]["names"] == ["y", "z"]


def test_it_is_plain_data() -> None:
    def body(s):
        s += "a" + bl.gen("x", logit_bias={3: 1.0}, stop=["."])
        s["own"] = object()

    trace = run(body).trace()
    assert json.loads(json.dumps(trace, allow_nan=False)) == trace
    assert trace["state"]["steps"][1]["settings"] == {"logit_bias": {"3": 1.0}, "stop": ["."]}


def test_the_trace_of_a_branch() -> None:
    found = []

    def body(s):
        s += "a"
        branches = s.fork(2)
        branches += bl.gen("x")
        found.append(branches[1].trace())

    run(body).sync()
    assert found[0]["state"]["branch"] == "0.1"
    assert [step["kind"] for step in found[0]["state"]["steps"]] == ["gen"]


def test_errors_are_traced_where_they_happened() -> None:
    def body(s):
        s += "a" + bl.gen("x") + "b" + bl.gen("y")

    state = run(body, bl.Mock(["one", OSError("gone")]))
    steps = state.trace()["state"]["steps"]
    assert [step["kind"] for step in steps] == ["text", "gen", "text", "gen"]
    assert steps[3]["error"] == str(state.error())
    assert steps[3]["requests"][0]["error"] == "OSError: gone"
    assert str(state.error()) in Page(fragment(state.trace())).text


def test_a_run_that_still_goes_on_is_traced_as_far_as_it_is() -> None:
    mock = bl.Mock("x", hold=True)

    def body(s):
        s += "a" + bl.gen("x")

    with collected() as runs:
        state = run(body, mock)
    mock.wait_for_requests(1)
    trace = trace_of(runs[0])
    step = trace["state"]["steps"][-1]
    assert (step["kind"], step["requests"], "ended" in step) == ("gen", [], False)
    Page(page([trace], "unfinished"))
    mock.release()
    assert state["x"] == "x"


def test_collected_runs_are_seen_with_their_first_tokens() -> None:
    with collected() as runs:
        states = bl.function(lesson).run_batch([{}, {}], backend=bl.Mock("one two"))
        usage = states[0].usage
    assert len(runs) == 2
    assert usage.ttft is not None
    assert usage["x"].ttft is not None
    run(lesson).sync()
    assert len(runs) == 2  # not those after the block


@pytest.mark.parametrize("stream", [False, True])
def test_the_page_shows_the_text(stream) -> None:
    state = run(lesson, stream=stream)
    shown = Page(page([state.trace(), state.trace()], "lesson.py"))
    assert shown.tags.count("mark") == 2 * 4
    assert "".join(shown.texts["bl-gen"]) == "one two" * 2 * 3
    assert "".join(shown.texts["bl-select"]) == "yes" * 2
    assert "4 requests" in shown.text


@settings(max_examples=100, deadline=None)
@given(st.text(min_size=1), st.text())
def test_whatever_is_said_is_text_not_markup(asked, said) -> None:
    def body(s):
        s += "Q" + asked + bl.gen("x", max_tokens=1000)
        s.fork(1)[0].__iadd__(asked)

    state = run(body, bl.Mock(said))
    html = fragment(state.trace())
    plain = Page(re.sub(r"&hairsp;", "", html))
    shown = "".join(plain.texts["bl-text"] + plain.texts.get("bl-gen", []))
    assert sorted(shown) == sorted(state.text() + asked)
    assert html.count("<mark") == 1


def test_the_page_needs_nothing_else() -> None:
    said = bl.Mock('<script src="http://x"></script><img onerror=alert(1)>')
    html = page([run(lesson, said).trace()], '<b>"title"</b>')
    shown = Page(html)
    assert not {"script", "link", "img", "iframe", "b"} & set(shown.tags)
    names = {name for name, _ in shown.attributes}
    assert names <= {"class", "style", "title", "lang", "charset", "open"}
    assert not re.search(r"url\(|@import|https?://", re.sub(r"&\w+;|http://x", "", html))


def test_bars_stay_within_the_timeline() -> None:
    html = page([run(lesson, stream=True).trace()], "x")
    bars = re.findall(r"left:([\d.]+)%;width:([\d.]+)%", html)
    assert len(bars) == 2 * 4
    for left, width in bars:
        assert 0 <= float(left) <= float(left) + float(width) <= 100.01
    for tokens in re.findall(r'<div class="bl-tokens">(.*?)</div>', html):
        assert sum(map(float, re.findall(r"width:([\d.]+)%", tokens))) == pytest.approx(
            100, abs=0.1
        )


def test_in_a_notebook() -> None:
    html = run(lesson)._repr_html_()
    assert html.startswith("<style>")
    assert Page(html).tags.count("mark") == 4


def test_no_runs_are_a_page_as_well() -> None:
    assert "No program has run" in Page(page([], "x")).text
