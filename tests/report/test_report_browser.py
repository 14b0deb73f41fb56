"""The page in a real browser."""

import csv
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.chromium import Browser
from tests.helpers.hostile_names import NASTY

DRAWN = "[...document.querySelectorAll('.plot')].every((plot) => plot.querySelector('.main-svg'))"
PLOT = "document.querySelector('#run-0-{} .plot')"


@pytest.fixture(scope="module")
def opened(window: Browser, page_file: Path) -> Browser:
    """The page, opened once; every test restores its state."""
    window.size(1280, 6000)  # tall: every figure is in view and drawn
    window.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
    window.open(page_file)
    window.script("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    window.until(DRAWN)
    return window


@pytest.fixture(autouse=True)
def _no_errors(opened: Browser) -> Iterator[None]:
    """After every test: no errors or warnings in the console, no requests."""
    yield
    assert opened.console_errors() == []
    assert opened.script("return performance.getEntriesByType('resource').map((entry) => entry.name)") == []


def test_figures_have_their_traces_and_points(opened: Browser) -> None:
    counts = opened.script(
        "return [...document.querySelectorAll('.plot')].map((plot) => plot.data.map((t) => (t.z || t.y).length))"
    )
    assert [len(traces) for traces in counts] == [6, 6, 6, 3, 3, 6, 3, 4]  # the last: a diagonal and three methods
    assert counts[0] == [6, 3] * 3  # the outline of a band, a line
    assert counts[3] == [16] * 3
    assert opened.script(f"return {PLOT.format('clients')}.querySelectorAll('.points path').length") == 48
    assert opened.script(f"return {PLOT.format('histogram')}.querySelectorAll('.bars .point').length") == 60


def test_names_are_shown_literally(opened: Browser) -> None:
    legend = opened.script(
        f"return [...{PLOT.format('clients')}.querySelectorAll('.legendtext')].map((t) => t.textContent)"
    )
    assert legend == ["fedavg", "ditto", NASTY]
    assert opened.script("return document.querySelectorAll('img, main b').length") == 0


def test_a_heading_sorts_by_click_and_by_keyboard(opened: Browser) -> None:
    column = "[...document.querySelectorAll('#run-0-evaluated tbody tr')].map((r) => Number(r.cells[1].dataset.value))"
    before = opened.script(f"return {column}")
    head = "document.querySelectorAll('#run-0-evaluated thead button')[1]"
    opened.click("#run-0-evaluated th:nth-child(2) button")
    assert opened.script(f"return {column}") == sorted(before, reverse=True)
    assert opened.script(f"return {head}.closest('th').getAttribute('aria-sort')") == "descending"
    opened.script(f"{head}.focus()")
    for kind in ("keyDown", "keyUp"):
        opened.devtools(
            "Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r"
        )
    assert opened.script(f"return {column}") == sorted(before)
    assert opened.script("return document.querySelectorAll('#run-0-evaluated [aria-sort]').length") == 1


def test_one_view_of_the_table_at_a_time(opened: Browser) -> None:
    visible = "return [...document.querySelectorAll('.view')].filter((v) => v.offsetHeight).map((v) => v.id)"
    assert opened.script(visible) == ["run-0-evaluated"]
    for view in ("clean", "evaluated"):
        opened.click(f"label:has(input[value=run-0-{view}])")
        assert opened.script(visible) == [f"run-0-{view}"]


def test_dark_recolours_page_and_figures(opened: Browser) -> None:
    paper = f"{PLOT.format('clients')}._fullLayout.paper_bgcolor"
    scale = f"{PLOT.format('classes')}._fullLayout.coloraxis.colorscale[0][1]"
    colours = f"return [getComputedStyle(document.body).backgroundColor, {paper}, {scale}]"
    light = opened.script(colours)
    opened.click("#theme")
    dark = opened.script(colours)
    assert all(a != b for a, b in zip(light, dark, strict=True))
    opened.click("#theme")
    assert opened.script(colours) == light
    for system, expected in (("dark", dark), ("light", light)):
        opened.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": system}])
        opened.until(f"document.documentElement.dataset.theme === '{system}'")
        assert opened.script(colours) == expected


def test_the_heat_map_follows_its_selectors(opened: Browser) -> None:
    visible = f"return {PLOT.format('classes')}._fullData.filter((t) => t.visible === true).map((t) => t.meta)"
    assert opened.script(visible) == [{"method": "fedavg", "seed": "0"}]
    for key, value in (("method", NASTY), ("seed", "1")):
        opened.script(
            "const s = document.querySelector(`select[data-key=${arguments[0]}]`);"
            "s.value = arguments[1]; s.dispatchEvent(new Event('change'))",
            key,
            value,
        )
    assert opened.script(visible) == [{"method": NASTY, "seed": "1"}]


def test_the_page_does_not_scroll_sideways_on_a_phone(opened: Browser) -> None:
    opened.size(390, 844)
    opened.until("document.documentElement.clientWidth === 390")
    opened.until(f"{PLOT.format('clients')}.querySelector('.main-svg').clientWidth < 390")
    assert opened.script("return document.documentElement.scrollWidth") == 390
    assert opened.script("return document.querySelector('.scroll').scrollWidth") > 390  # only the table scrolls


def test_figures_can_be_downloaded(opened: Browser) -> None:
    for kind in ("png", "csv"):
        opened.click(f"#run-0-clients [data-download={kind}]")
    end = time.monotonic() + 10
    image, table = (opened.downloads / f"run-0-clients.{kind}" for kind in ("png", "csv"))
    while not (image.exists() and table.exists()) and time.monotonic() < end:
        time.sleep(0.05)
    assert image.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 48
    assert {row["method"] for row in rows} == {"fedavg", "ditto", NASTY}
