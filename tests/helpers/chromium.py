"""A real browser for tests: chromium over WebDriver (W3C), with the standard library only."""

import base64
import contextlib
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")


class Browser:
    """One browser window."""

    def __init__(self, address: str, downloads: Path) -> None:
        self.downloads = downloads
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        options = {
            "binary": CHROMIUM,
            "args": arguments,
            "prefs": {"download.default_directory": str(downloads), "download.prompt_for_download": False},
        }
        capabilities = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        response = _call("POST", f"{address}/session", {"capabilities": {"alwaysMatch": capabilities}})
        self._session = f"{address}/session/{response['sessionId']}"

    def open(self, page: Path) -> None:
        """Load a file and wait until it is loaded."""
        self.open_address(page.resolve().as_uri())

    def open_address(self, address: str) -> None:
        """Load a page and wait until it is loaded."""
        _call("POST", f"{self._session}/url", {"url": address})

    def script(self, text: str, *arguments: Any) -> Any:
        """Run the body of a JavaScript function and return its result; waits for a promise."""
        return _call("POST", f"{self._session}/execute/sync", {"script": text, "args": list(arguments)})

    def click(self, selector: str) -> None:
        """Click an element; fails if it is not visible."""
        element = _call("POST", f"{self._session}/element", {"using": "css selector", "value": selector})
        _call("POST", f"{self._session}/element/{next(iter(element.values()))}/click", {})

    def until(self, text: str, seconds: float = 10) -> None:
        """Wait until a JavaScript condition is true."""
        end = time.monotonic() + seconds
        while not self.script(f"return Boolean({text})"):
            assert time.monotonic() < end, f"not true within {seconds} s: {text}"
            time.sleep(0.05)

    def devtools(self, command: str, **parameters: Any) -> Any:
        """One command of the Chrome DevTools protocol."""
        return _call("POST", f"{self._session}/goog/cdp/execute", {"cmd": command, "params": parameters})

    def size(self, width: int, height: int) -> None:
        """Set the size of the screen."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def console_errors(self) -> list[str]:
        """Console warnings and errors since the last call, with uncaught errors and blocked requests."""
        log = _call("POST", f"{self._session}/se/log", {"type": "browser"})
        return [entry["message"] for entry in log if entry["level"] in ("SEVERE", "WARNING")]

    def screenshot(self, path: Path) -> None:
        """Save the whole page as PNG."""
        height = self.script("return document.documentElement.scrollHeight")
        width = self.script("return innerWidth")
        self.size(width, height)
        self.until("[...document.querySelectorAll('.plot')].every((p) => p.querySelector('.main-svg'))")
        time.sleep(0.5)
        path.write_bytes(base64.b64decode(_call("GET", f"{self._session}/screenshot")))

    def close(self) -> None:
        """End the session."""
        _call("DELETE", self._session)


@contextlib.contextmanager
def browser(downloads: Path) -> Iterator[Browser]:
    """Start a browser and stop it at the end."""
    assert DRIVER is not None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with subprocess.Popen([DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as driver:
        try:
            address = f"http://127.0.0.1:{port}"
            _wait(address)
            window = Browser(address, downloads)
            try:
                yield window
            finally:
                window.close()
        finally:
            driver.terminate()


def _wait(address: str) -> None:
    for _ in range(200):
        with contextlib.suppress(OSError):
            if _call("GET", f"{address}/status")["ready"]:
                return
        time.sleep(0.05)
    raise RuntimeError("chromedriver did not start within 10 s")


def _call(verb: str, url: str, content: Any = None) -> Any:
    body = None if content is None else json.dumps(content).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method=verb)
    # The address is local: ignore a proxy set in the environment.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=60) as response:
            return json.load(response)["value"]
    except urllib.error.HTTPError as error:
        with error:
            raise RuntimeError(f"{verb} {url}: {error.read().decode()[:500]}") from error
