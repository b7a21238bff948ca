"""The page as a document: it loads from the server alone, under its policy, without a complaint of the browser; everything has a name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.visitor import Visitor, chromium, visiting
from tests.integration.rig import Gateway, gateway

# Everything that can be used must have a name for those who do not see it, and a size for those who touch it.
UNNAMED = """
() => [...document.querySelectorAll("button, input, select, textarea, a, [role], canvas, summary")].filter((element) => {
  if (element.closest("[hidden]") || element.type === "hidden" || getComputedStyle(element).display === "none") return false;
  const labels = [...(element.labels ?? [])].map((label) => label.textContent).join("");
  const ids = (element.getAttribute("aria-labelledby") ?? "").split(" ");
  const by = ids.map((id) => document.getElementById(id)?.textContent ?? "").join("");
  return !(element.getAttribute("aria-label") || by || labels || element.textContent.trim());
}).map((element) => element.outerHTML.slice(0, 120))
"""
INLINE = """
() => {
  const script = document.createElement("script");
  script.textContent = "globalThis.wasRun = true";
  document.body.append(script);
}
"""
PLACES = "found => found.map((place) => place.dataset.state)"
OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
CONTRAST = Path(__file__).parent / "contrast.js"


def origin(server: Gateway) -> str:
    return f"http://127.0.0.1:{server.port}"


async def open_everything(visitor: Visitor) -> None:
    await visitor.page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")


@pytest.mark.parametrize("path", ["/", "/app/", "/status/"])
async def test_no_complaint_no_other_host_every_control_named_nothing_wider_than_the_screen(path: str) -> None:
    async with gateway(2) as server, chromium() as browser:
        for width, scheme in ((1280, "light"), (390, "dark")):
            async with visiting(origin(server), browser, width=width, color_scheme=scheme) as visitor:
                await visitor.open(path)
                await visitor.until("model" if path == "/status/" else "server-text", "fake")
                await open_everything(visitor)
                assert await visitor.page.evaluate(UNNAMED) == []
                assert await visitor.page.evaluate(OVERFLOW) == 0
                assert await visitor.page.evaluate(CONTRAST.read_text(encoding="utf-8")) == []
                headings = await visitor.page.eval_on_selector_all("h1", "found => found.length")
                assert headings == 1
                assert await visitor.page.get_attribute("html", "lang") == "en"


async def test_the_policy_holds_what_is_inline_does_not_run() -> None:
    async with gateway(1) as server, chromium() as browser, visiting(origin(server), browser) as visitor:
        reply = await visitor.page.goto(visitor.origin + "/")
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        await visitor.page.evaluate(INLINE)
        assert await visitor.page.evaluate("globalThis.wasRun") is None
        visitor.forgive("Content Security Policy")


async def test_the_keyboard_alone_is_enough() -> None:
    async with gateway(1) as server, chromium() as browser, visiting(origin(server), browser) as visitor:
        await visitor.open()
        seen = []
        for _ in range(14):
            await visitor.page.keyboard.press("Tab")
            seen.append(await visitor.page.evaluate("document.activeElement.id || document.activeElement.className"))
        assert seen[0] == "skip"
        assert {"status-link", "theme", "talk", "wave", "log", "preset", "voice"} <= set(seen)
        await visitor.page.focus("#talk")
        await visitor.page.keyboard.press("Enter")
        await visitor.phase("live")
        await visitor.page.focus("#talk")
        await visitor.page.keyboard.press("Enter")
        await visitor.phase("over")


async def test_the_theme_goes_round_and_is_remembered() -> None:
    async with gateway(1) as server, chromium() as browser, visiting(origin(server), browser, color_scheme="light") as visitor:
        await visitor.open()
        ground = "getComputedStyle(document.body).backgroundColor"
        seen = [await visitor.page.evaluate(ground)]
        for _ in range(2):
            await visitor.page.click("#theme")
            seen.append(await visitor.page.evaluate(ground))
        assert seen[0] == seen[1] != seen[2]  # as the system, light, dark
        await visitor.open()
        assert await visitor.page.evaluate(ground) == seen[2]


async def test_another_client_has_the_root_and_ours_moves(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<title>theirs</title>")
    async with gateway(1, static=tmp_path) as server, chromium() as browser, visiting(origin(server), browser) as visitor:
        await visitor.open()
        assert await visitor.page.title() == "theirs"
        await visitor.open("/app")
        assert await visitor.page.evaluate("location.pathname") == "/app/"
        await visitor.talk()
        await visitor.until("log", "hello")
        await visitor.hang_up()
        await visitor.page.click("#status-link")
        await visitor.until("health-text", "Healthy")
        await visitor.page.click("#talk-link")
        await visitor.until("server-text", "fake on cpu")
        visitor.troubles = [trouble for trouble in visitor.troubles if "favicon" not in trouble]  # of theirs


async def test_the_status_page_shows_who_is_on_the_line_and_asks_for_a_key_where_there_are_keys() -> None:
    async with gateway(2) as server, chromium() as browser, visiting(origin(server), browser) as visitor, server.connect("rawpcm") as ws:
        await ws.send_json({"type": "open"})
        await visitor.open("/status")
        await visitor.until("health-text", "Healthy")
        await visitor.until("calls", "rawpcm")
        await visitor.until("s-slots", "1 of 2")
        assert await visitor.page.eval_on_selector_all("#places li", PLACES) == ["live", "idle"]
        await ws.close()
        await visitor.until("calls", "Nobody is calling")
    async with gateway(1, api_keys=("sk-good",)) as server, chromium() as browser, visiting(origin(server), browser) as visitor:
        await visitor.open("/status")
        await visitor.until("health-text", "asks for a key")
        await visitor.page.click("#change-key")
        await visitor.page.fill("#key", "sk-good")
        await visitor.page.click("#key-form .primary")
        await visitor.until("health-text", "Healthy")
        visitor.forgive("401")
