"""The page in headless Chromium: what a person does, what a model could try, and what a screen reader needs.

Needs playwright (PyPI) and a Chromium: playwright's own, or one that CHROMIUM or PATH names. axe-core comes from npm:
``npm install axe-core`` in any folder, which AXE names; without it only the check for accessibility is skipped.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from tests.serve.conftest import VERSE, Server  # noqa: E402 | after importorskip
from tests.support.scripted import make_scripted  # noqa: E402

HOSTILE = [
    "<script>window.hacked=1</script>",
    "<img src=x onerror='window.hacked=2'>\n\n",
    "[link](javascript:window.hacked=3) ",
    "[data](data:text/html,<script>window.hacked=4</script>)\n\n",
    "![picture](http://127.0.0.1:9/leak.png?secret)\n\n",
    "<svg onload='window.hacked=5'><style>body{display:none}</style></svg>\n\n",
    "<iframe srcdoc='<script>parent.hacked=6</script>'></iframe>\n\n",
    "<form action='http://127.0.0.1:9/'><input name=q><button>go</button></form>\n\n",
    "[title](http://example.com \"x' onmouseover='window.hacked=7\")\n\n",
    "<a href='jav&#x09;ascript:window.hacked=8'>a</a>\n\n",
    "<math><mtext><table><mglyph><style><img src onerror=hacked=9>\n\n",
    "```html\n<script>window.hacked=10</script>\n```\n\n",
    "the end",
]
ANSWER = ["<think>", "First I think.", "</think>", "# Title\n\n", "Some **bold** text.\n\n", "```py\nx = 1\n```\n"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        own = started.chromium.executable_path
        path = os.environ.get("CHROMIUM") or (own if os.path.exists(own) else shutil.which("chromium"))
        if path is None:
            pytest.skip("needs a Chromium: playwright install chromium, or CHROMIUM=PATH")
        found = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    calls = ["<tool_call>", '{"name": "look", "arguments": {"where": "here"}}', "</tool_call>"]
    models = {"thinker": ANSWER, "hostile": HOSTILE, "caller": calls, "long": [f"word{i} " for i in range(1500)]}
    files = [f"{name}={make_scripted(folder / f'{name}.gguf', text, ['unused'])}" for name, text in models.items()]
    server = Server(*files, f"verse={VERSE}", "--device", "cpu", "--threads", "1", "--sequences", "1")
    yield server
    assert server.stop() == 0


@pytest.fixture
def page(browser: Any, pages: Server) -> Iterator[Any]:
    """The page. A message in the console, an exception, or a request to another address fails the test."""
    context = browser.new_context(
        viewport={"width": 1280, "height": 800}, permissions=["clipboard-read", "clipboard-write"]
    )
    opened, problems = context.new_page(), []
    opened.on("console", lambda message: problems.append(message.text) if message.type != "log" else None)
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("request", lambda r: None if r.url.startswith((pages.url, "data:")) else problems.append(r.url))
    opened.goto(pages.url)
    opened.wait_for_selector(".pick option", state="attached")
    yield opened
    context.close()
    assert problems == []


def ask(page: Any, model: str, text: str) -> Any:
    """Send a message; return the last answer when it is complete."""
    page.select_option(".pick select", model)
    page.fill("textarea[aria-label=Message]", text)
    page.keyboard.press("Enter")
    page.wait_for_selector("article.answer:last-of-type[aria-busy=false]", timeout=60_000)
    return page.locator("article.answer").last


def test_a_conversation(page: Any, pages: Server) -> None:
    answer = ask(page, "thinker", "Hello <b>there</b>")
    assert page.locator(".question .bubble").inner_text() == "Hello <b>there</b>"
    assert answer.locator(".markdown h2").inner_text() == "Title"
    assert answer.locator("strong").inner_text() == "bold"
    assert answer.locator("pre code").inner_text() == "x = 1"
    thoughts = answer.locator("details.fold")
    assert not thoughts.get_by_text("First I think.").is_visible()
    thoughts.locator("summary").click()
    assert thoughts.get_by_text("First I think.").is_visible()
    numbers = answer.locator("details.numbers")
    assert "cpu, " in numbers.locator("summary").inner_text()
    numbers.locator("summary").click()
    assert "from the cache" in numbers.inner_text()
    assert "cpu (ggml-cpu" in numbers.inner_text()
    answer.get_by_label("Copy answer").click()
    assert page.evaluate("navigator.clipboard.readText()").startswith("# Title")
    page.get_by_label("Edit and ask again").click()
    page.get_by_label("Edit the message").fill("Another question")
    page.keyboard.press("Enter")
    page.wait_for_selector("article.answer[aria-busy=false]")
    assert page.locator(".question").count() == page.locator(".answer").count() == 1
    assert page.locator(".question .bubble").inner_text() == "Another question"
    page.get_by_label("Answer again").click()
    page.wait_for_selector("article.answer[aria-busy=false] details.numbers")
    page.reload()  # the browser keeps it
    page.locator(".talks button").first.click()
    assert page.locator("article.answer .markdown h2").inner_text() == "Title"
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_label(re.compile("^Delete ")).click()
    assert page.locator(".talks li").count() == 0


def test_stop(page: Any, pages: Server) -> None:
    page.select_option(".pick select", "long")
    page.fill("textarea[aria-label=Message]", "Write")
    page.keyboard.press("Enter")
    page.get_by_text("word3 ").wait_for()
    page.get_by_label("Stop").click()
    page.wait_for_selector("article.answer[aria-busy=false]")
    answer = page.locator("article.answer")
    assert "stopped" in answer.inner_text()
    assert "word1499" not in answer.inner_text()
    answer = ask(page, "thinker", "And now?")  # the conversation goes on
    assert answer.locator("h2").inner_text() == "Title"


def test_calls_are_folded(page: Any) -> None:
    call = ask(page, "caller", "Look").locator("details.fold")
    assert call.locator("summary").inner_text() == "Call of look"
    call.locator("summary").click()
    assert json.loads(call.locator("pre").inner_text()) == {"where": "here"}


def test_what_a_model_writes_is_never_run(page: Any) -> None:
    answer = ask(page, "hostile", "Do your worst")
    page.wait_for_timeout(300)
    assert page.evaluate("window.hacked") is None
    assert answer.get_by_text("the end").is_visible()
    assert "<iframe srcdoc=" in answer.inner_text()  # shown as text
    assert (
        answer.locator("script, img, svg:not(.icon), iframe, form, style, math, input, [style], [onmouseover]").count()
        == 0
    )
    for link in answer.locator("a").all():
        href = link.get_attribute("href")
        assert href is None or urllib.parse.urlsplit(href).scheme in ("http", "https", "mailto")
        assert link.get_attribute("rel") == "noopener noreferrer"


def test_the_policy_holds_without_the_cleaner(browser: Any, pages: Server) -> None:
    """Even HTML that reached the page would run nothing and load nothing from elsewhere."""
    page = browser.new_page()
    page.goto(pages.url)
    page.wait_for_selector(".pick option", state="attached")
    attempts = {
        "document.body.innerHTML = '<img src=x onerror=hacked=1>'": "TypeError",
        "eval('window.hacked = 2')": "EvalError",
        "document.body.append(Object.assign(document.createElement('script'), {text: 'hacked = 3'}))": "TypeError",
        "return fetch('http://127.0.0.1:9/').then(() => done('sent'), (e) => done(e.name))": "TypeError",
    }
    for code, error in attempts.items():  # by a timer, because code of a debugger may do more
        attempt = f"() => {{ try {{ {code}; done('ran') }} catch (e) {{ done(e.name) }} }}"
        assert page.evaluate(f"() => new Promise((done) => setTimeout({attempt}))") == error, code
    assert page.evaluate("window.hacked") is None
    page.close()


def test_models_devices_and_activity(page: Any, pages: Server) -> None:
    page.get_by_role("button", name="Models").click()
    card = page.get_by_role("region", name="verse")
    layers = card.get_by_role("img")
    assert layers.get_attribute("aria-label") == "Layers by device. cpu: input, layers 0 to 3, output"
    assert layers.locator("i").count() == 6
    card.get_by_role("button", name="Unload").click()
    card.get_by_text("not loaded").wait_for()
    assert page.get_by_role("status").inner_text() == "verse was unloaded."
    card.get_by_role("button", name="Load").click()
    card.get_by_role("button", name="Unload").wait_for()
    page.get_by_role("button", name="Devices").click()
    page.get_by_text("Used by default:").wait_for()
    assert page.get_by_role("region", name="cpu", exact=True).get_by_text("free").is_visible()
    assert page.locator(".verdicts li").count() > 0
    page.get_by_role("button", name="Activity").click()
    page.get_by_text("Speed now").wait_for()


def test_a_picture_can_be_attached_only_if_the_model_sees(page: Any, pages: Server) -> None:
    assert page.get_by_label("Attach a picture").count() == 0
    sent: list[Any] = []

    def seeing(route: Any) -> None:
        answer = route.fetch()
        status = answer.json()
        for model in status["models"]:
            model["capabilities"] = [*model.get("capabilities", []), "vision"]
        route.fulfill(response=answer, json=status)

    def record(route: Any) -> None:
        sent.append(route.request.post_data_json)
        chunk = {"choices": [{"delta": {"content": "a dot"}, "finish_reason": "stop"}]}
        route.fulfill(body=f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n", content_type="text/event-stream")

    page.route("**/api/status", seeing)
    page.route("**/v1/chat/completions", record)
    page.get_by_label("Attach a picture").wait_for()
    dot = bytes.fromhex("47494638396101000100800000000000ffffff21f90401000000002c00000000010001000002024401003b")
    page.set_input_files("input[type=file]", {"name": "dot.gif", "mimeType": "image/gif", "buffer": dot})
    page.get_by_alt_text("picture 1").wait_for()
    ask(page, "thinker", "What is it?")
    picture, text = sent[0]["messages"][0]["content"]
    assert picture["image_url"]["url"].startswith("data:image/gif;base64,R0lGOD")
    assert text == {"type": "text", "text": "What is it?"}


def test_keyboard_alone(page: Any) -> None:
    page.reload()
    page.wait_for_selector(".pick option", state="attached")
    page.get_by_label("Message", exact=True).focus()
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    page.keyboard.press("Enter")
    page.wait_for_selector("article.answer[aria-busy=false]")
    assert page.locator(".bubble").inner_text() == "one\ntwo"
    reached = set()
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.ariaLabel || document.activeElement.innerText"))
    assert {"New conversation", "Models", "Devices", "Activity", "Copy answer", "Message"} <= reached


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 380])
def test_accessibility(browser: Any, pages: Server, scheme: str, width: int) -> None:
    axe = Path(os.environ.get("AXE", "."), "node_modules", "axe-core", "axe.min.js")
    if not axe.exists():
        pytest.skip("needs axe-core: npm install axe-core; AXE=FOLDER")
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800}, bypass_csp=True)
    page = context.new_page()
    page.goto(pages.url)
    page.wait_for_selector(".pick option", state="attached")
    ask(page, "thinker", "Hello")
    page.locator("details.fold summary").click()
    for view in ("Chat", "Models", "Devices", "Activity"):
        if view != "Chat":
            if width < 700:
                page.get_by_role("button", name="Conversations and views").click()
            page.get_by_role("button", name=view, exact=True).click()
            page.wait_for_selector(".page .pulse", state="detached", timeout=60_000)
        page.evaluate(axe.read_text(encoding="utf-8"))
        found = page.evaluate("axe.run()")["violations"]
        assert [(v["id"], [n["html"][:200] for n in v["nodes"]]) for v in found] == [], view
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, view
    context.close()
