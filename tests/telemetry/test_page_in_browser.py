"""The picture of a node as Chromium shows it: on a screen and on a telephone, light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.model.address import Address
from agent.model.cpuset import CpuSet
from agent.telemetry.health import Health, HealthServer
from agent.telemetry.page import NodePage
from agent.telemetry.svg import plan_svg
from tests.telemetry.chromium import Browser, chromium
from tests.telemetry.listening import LOOPBACK, port_of
from tests.telemetry.plans import KINDS, hostile, odd, virtual

WIDTHS = (1280, 400)

OVERFLOWING = """(() => {
  const out = [], wide = innerWidth;
  if (document.documentElement.scrollWidth > wide) out.push(`the page is ${document.documentElement.scrollWidth} wide`);
  for (const one of document.querySelectorAll('body *:not(svg *)')) {
    if (one.closest('thead') && wide < 900) continue;
    const box = one.getBoundingClientRect();
    if (box.right > wide + 0.5 || box.left < -0.5) out.push(`${one.tagName} ${one.textContent.slice(0, 40)}`);
  }
  for (const one of document.querySelectorAll('svg text, svg rect')) {
    const frame = one.ownerSVGElement.getBoundingClientRect(), box = one.getBoundingClientRect();
    if (box.right > frame.right + 0.5 || box.left < frame.left - 0.5 || box.bottom > frame.bottom + 0.5)
      out.push(`${one.tagName} ${one.textContent} beyond its picture`);
  }
  for (const one of document.querySelectorAll('svg .cell text')) {
    const frame = one.previousElementSibling.getBoundingClientRect(), box = one.getBoundingClientRect();
    if (box.right > frame.right || box.left < frame.left) out.push(`${one.textContent} beyond its cell`);
  }
  const cells = [...document.querySelectorAll('svg .cell[role=img] rect')].map(c => c.getBoundingClientRect());
  const taken = new Set();
  for (const box of cells) {
    const at = `${Math.round(box.left)} ${Math.round(box.top)}`;
    if (taken.has(at)) out.push(`two cells at ${at}`);
    taken.add(at);
    if (box.width < 12) out.push(`a cell of ${box.width} pixels`);
  }
  return out;
})()"""

GROUND = "getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("chromium")) as one:
        yield one


@pytest.fixture(scope="module")
def page() -> Iterator[tuple[NodePage, str]]:
    """The page of an agent, and its address."""
    health = Health(5)
    one = NodePage(lambda: health.readiness()[1])
    server = HealthServer(Address(LOOPBACK, 0), health, page=one.response)
    yield one, f"http://{LOOPBACK}:{port_of(server)}/"
    server.close()


def look(browser: Browser, url: str, width: int, *, dark: bool) -> None:
    """Loads it, and finds nothing wrong with it."""
    browser.open(url, width, dark=dark)
    assert browser.complaints == []
    assert browser.eval("document.scripts.length") == 0
    assert browser.eval(OVERFLOWING) == []


def test_before_the_first_pass_there_is_a_page(browser: Browser, page: tuple[NodePage, str]) -> None:
    look(browser, page[1], 400, dark=False)
    assert "There is no plan yet: starting" in browser.eval("document.body.innerText")


@pytest.mark.parametrize("kind", KINDS)
def test_a_node_is_shown_whole_on_a_screen_and_on_a_telephone(
    browser: Browser, page: tuple[NodePage, str], tmp_path: Path, kind: str
) -> None:
    doc = virtual(tmp_path, kind)
    page[0].passed(doc, {0: 9})
    for width in WIDTHS:
        for dark in (False, True):
            look(browser, page[1], width, dark=dark)
            assert browser.eval(GROUND) == ("rgb(11, 18, 32)" if dark else "rgb(248, 250, 252)")
    images = [node.name for node in browser.accessible() if node.role in ("image", "img")]
    cpus = CpuSet.parse(doc["status"]["topology"]["cpus"])
    assert sorted(int(name.removeprefix("CPU ").partition(",")[0]) for name in images) == list(cpus)
    first = CpuSet.parse(doc["status"]["npus"][0]["roles"]["main"]).first
    assert f"CPU {first}, NPU 0, main" in images


@pytest.mark.parametrize("width", WIDTHS)
def test_what_is_not_plain_fits_too(browser: Browser, page: tuple[NodePage, str], width: int) -> None:
    page[0].passed(odd(), {})
    look(browser, page[1], width, dark=False)


@pytest.mark.parametrize(
    "name",
    [
        "<script>document.title = 'taken'</script>",
        '"><img src=x onerror="document.title=\'taken\'">',
        "</style></svg><script>document.title = 'taken'</script>",
        "\u202eelbat\u05d0\u05d1\u0627 e\u0301\u0301\u0301",
        "你" * 80,
        "W" * 200,
    ],
)
def test_a_hostile_name_does_nothing_and_fits(browser: Browser, page: tuple[NodePage, str], name: str) -> None:
    page[0].passed(hostile(name), {})
    for width in WIDTHS:
        look(browser, page[1], width, dark=False)
        assert browser.eval("document.title") != "taken"
        assert browser.eval("document.images.length") == 0


@pytest.mark.parametrize("kind", ["a3", "small"])
def test_the_picture_alone_is_shown_whole(browser: Browser, tmp_path: Path, kind: str) -> None:
    file = tmp_path / "node.svg"
    file.write_text(plan_svg(virtual(tmp_path, kind), drifted={0}))
    for width, dark in ((1280, False), (1280, True), (400, False)):
        browser.open(file.as_uri(), width, dark=dark)
        assert browser.complaints == []
        assert browser.eval("document.rootElement.getBoundingClientRect().width") <= width
        ground = browser.eval("getComputedStyle(document.querySelector('.ground')).fill")
        assert ground == ("rgb(11, 18, 32)" if dark else "rgb(248, 250, 252)")
