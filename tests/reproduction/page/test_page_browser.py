"""The reproduction page in a real browser."""

from pathlib import Path

import pytest

from reproduction.page.html import as_html
from tests.helpers.chromium import Browser
from tests.reproduction.page.published import published_page

TABLES = """return [...document.querySelectorAll('table')]
    .filter((t) => t.offsetWidth && t.scrollWidth > t.parentElement.clientWidth)
    .map((t) => [t.className, t.parentElement.getAttribute('aria-label')])"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "index.html"
    path.write_text(as_html(published_page(), plots=True), "utf-8")
    return path


@pytest.mark.slow
def test_tables_fit_a_desktop_and_verdicts_a_phone(window: Browser, page: Path) -> None:
    for width, theme in ((1280, "light"), (390, "dark")):
        window.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        window.size(width, 1000)
        window.open(page)
        window.until(f"document.documentElement.clientWidth === {width}")
        window.script("document.querySelectorAll('details').forEach((d) => { d.open = true })")
        assert window.script("return document.documentElement.scrollWidth") == width
        wide = window.script(TABLES)
        if width == 1280:
            assert wide == []
        assert [name for name, _ in wide if "verdicts" in name] == []
    assert window.console_errors() == []
    assert window.script("return performance.getEntriesByType('resource').map((entry) => entry.name)") == []


def test_headings_of_verdicts_stay_visible_on_a_phone(window: Browser, page: Path) -> None:
    window.size(390, 1000)
    window.open(page)
    window.script("document.querySelectorAll('details').forEach((d) => { d.open = true })")
    heads = window.script(
        "return [...document.querySelectorAll('.verdicts thead th')].filter((h) => h.offsetHeight)"
        ".map((h) => h.textContent)"
    )
    assert set(heads) == {"the paper says", "we say"}
    notes = "return document.querySelectorAll('.overview > details > ul > li').length"
    assert window.script(notes) > 5  # a list
    assert "mono" in window.script("return getComputedStyle(document.querySelector('.overview code')).fontFamily")


def test_only_the_opening_is_open_and_links_open_chapters(window: Browser, page: Path) -> None:
    window.size(1280, 1000)
    window.open(page)
    visible = "return [...document.querySelectorAll('table, figure')].filter((e) => e.checkVisibility()).length"
    assert window.script(visible) == 2
    window.script("document.querySelector('.contents a[href=\"#flips\"]').click()")
    window.until("document.querySelector('#flips').checkVisibility()")
    assert window.script(visible) > 4
    assert window.console_errors() == []
