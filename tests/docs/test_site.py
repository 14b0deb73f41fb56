"""The documentation site builds without warnings and without network; its links work, and its search finds pages."""

import fcntl
import functools
import http.server
import os
import re
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

import fedtilt as ft
from fedtilt.methods import COMPONENTS
from tests.helpers.chromium import CHROMIUM, DRIVER, browser

pytestmark = pytest.mark.slow  # the build takes a minute; `.ci/run` builds the site too
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site, shared by all processes of a test run. The notebook runs in a test of its own."""
    base = tmp_path_factory.getbasetemp()  # with xdist, a folder of this process beside those of the others
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "site"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)  # waits for the process that builds it
        if not (folder / "html" / "index.html").exists():
            command = [sys.executable, "-m", "sphinx", "--nitpicky", "--fail-on-warning", "--keep-going", "--quiet"]
            command += ["-D", "nb_execution_mode=off", "-d", str(folder / "doctrees"), "-b", "html"]
            done = subprocess.run(
                [*command, str(ROOT / "docs"), str(folder / "html")], capture_output=True, text=True, timeout=600
            )
            assert done.returncode == 0, done.stderr
    return folder / "html"


class _Page(HTMLParser):
    """The links of a page, and the names that links can point to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.names: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for key, value in attrs:
            if value and key in ("href", "src"):
                self.links.add(value)
            elif value and key in ("id", "name"):
                self.names.add(value)


def test_every_internal_link_leads_somewhere(site: Path) -> None:
    pages = {path: _Page(path) for path in site.rglob("*.html")}
    assert len(pages) > 30
    broken = []
    for path, page in pages.items():
        for link in page.links:
            address, _, anchor = link.partition("#")
            if urllib.parse.urlsplit(link).scheme:
                continue
            target = (path.parent / urllib.parse.unquote(address.partition("?")[0])).resolve() if address else path
            target = target / "index.html" if target.is_dir() else target
            names = pages[target].names if target in pages else None
            if not target.exists() or (anchor and names is not None and urllib.parse.unquote(anchor) not in names):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert not broken


def test_formulas_are_well_formed(site: Path) -> None:
    formulas = re.findall(r"<math.*?</math>", (site / "mathematics.html").read_text(), re.DOTALL)
    assert len(formulas) > 20
    for formula in formulas:
        for element in ElementTree.fromstring(formula.replace("&ApplyFunction;", "\u2061")).iter():
            match element.tag.rpartition("}")[2]:
                case "mfrac" | "msub" | "msup" | "munder":
                    assert len(element) == 2, formula
                case "mtable":
                    assert all(
                        row.tag.endswith("mtr") and all(cell.tag.endswith("mtd") for cell in row) for row in element
                    )


def test_every_page_is_in_the_navigation(site: Path) -> None:
    links = _Page(site / "index.html").links
    pages = [path.stem for path in (ROOT / "docs").glob("*.md") if path.stem != "index"]
    assert len(pages) > 20
    assert not [page for page in pages if f"{page}.html" not in links]


def test_the_reference_has_every_public_name_and_command(site: Path) -> None:
    names = set().union(*(_Page(path).names for path in (site / "api").glob("*.html")))
    modules = {"aggregate", "data", "losses", "methods", "models", "optimizers", "schedules", "stopping", "testing",
               "trackers"}  # fmt: skip
    assert not [name for name in ft.__all__ if f"fedtilt.{name}" not in names and name not in {*modules, "__version__"}]
    assert not [name for name in ft.data.__all__ if f"fedtilt.data.{name}" not in names and name != "Federation"]
    assert not [f"{kind} {rule}" for kind, known in COMPONENTS.items() for rule, cls in known.items()
                if not any(name.endswith(f".{cls.__name__}") for name in names)]  # fmt: skip
    assert "fedtilt.testing.check_method" in names
    commands = (site / "commands.html").read_text()
    for command in ("run", "tune", "resume", "audit", "deploy up", "data schema"):
        assert f"fedtilt {command}" in commands


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    """The site on a local server: the search loads its index, which pages opened as files may not."""
    handler = functools.partial(_QuietHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


class _QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Write no log."""


@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="Chromium is not installed")
def test_search_and_a_phone(address: str, tmp_path: Path) -> None:
    with browser(tmp_path) as window:
        window.open_address(f"{address}/search.html?q=certificate")
        window.until("document.querySelectorAll('#search-results li').length > 0", 30)
        found = window.script("return [...document.querySelectorAll('#search-results li a')].map((a) => a.href)")
        assert any("metrics.html" in link for link in found)
        window.size(390, 800)
        for page in ("index", "getting-started", "method", "commands", "spec", "deployment", "api/fedtilt"):
            window.open_address(f"{address}/{page}.html")
            assert window.script("return document.documentElement.scrollWidth") <= 390, page
        assert window.console_errors() == []
