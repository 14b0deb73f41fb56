"""The page of `fedtilt deploy up --page`: what `fedtilt deploy status` shows of runs, in a browser on this machine."""

from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from fedtilt.cli.deploy_status import run_lines

_REFRESH_SECONDS = 5
_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta http-equiv="refresh" content="{seconds}"><style>body {{ font: 16px sans-serif; margin: 2em }}</style></head>
<body><h1>{title}</h1>{runs}</body></html>
"""


def status_page(title: str, runs: Path) -> str:
    """The page about all runs in a folder; it loads itself again every few seconds."""
    from fedtilt.flower.deploy.run_status import run_status

    blocks = []
    for folder in sorted(runs.glob("*/")):
        if (found := run_status(folder)) is not None:
            state, *lines = run_lines(found)
            items = "".join(f"<li>{escape(line)}</li>" for line in lines)
            blocks.append(f"<h2>{escape(state)}</h2><ul>{items}</ul>")
    return _PAGE.format(title=escape(title), seconds=_REFRESH_SECONDS, runs="".join(blocks) or "<p>no run yet</p>")


class StatusServer(ThreadingHTTPServer):
    """Serves the page on a free port of 127.0.0.1.

    Args:
        title: of the page
        runs: the folder of the runs
    """

    def __init__(self, title: str, runs: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.title, self.runs = title, runs

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: StatusServer

    def do_GET(self) -> None:
        """Send the page, to a browser that asks for this address by its number."""
        is_own = self.headers.get("Host") == f"127.0.0.1:{self.server.server_port}"  # no other site's name for it
        if not is_own or self.path != "/":
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        body = status_page(self.server.title, self.server.runs).encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing about requests."""
