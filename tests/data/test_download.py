"""Downloads against a real server on this machine: whole, resumed, refused, damaged."""

import dataclasses
import gzip
import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fedtilt.data import catalog, check, get
from fedtilt.data.catalog import Published
from fedtilt.errors import InputError

CONTENT = bytes(range(256)) * 1200  # some 300 kB, several chunks


class Handler(BaseHTTPRequestHandler):
    """/good serves ranges, /plain ignores them, /cut breaks off half way, /wrong has other content, /long too much."""

    def do_GET(self):
        wanted = self.headers.get("Range")
        self.server.seen.append((self.path, wanted))
        body = {"/wrong": CONTENT[::-1], "/long": CONTENT + b"more"}.get(self.path, CONTENT)
        if self.path == "/gone":
            self.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.path != "/plain" else 0
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        self.wfile.write(body[start : start + len(body) // 2] if self.path == "/cut" else body[start:])

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        served.seen = []
        served.url = f"http://127.0.0.1:{served.server_port}"
        thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield served
        served.shutdown()
        thread.join()


def fetch(server, folder, *routes, **settings):
    urls = tuple(server.url + route for route in routes)
    md5 = hashlib.md5(CONTENT).hexdigest()
    file = Published(path="mnist/file.gz", size=len(CONTENT), md5=md5, urls=urls)
    return get("mnist", folder, files=[file], timeout=5, **settings)


def left(folder):
    return sorted(path.name for path in (folder / "mnist").iterdir())


def test_whole_download_reports_progress(server, tmp_path):
    steps = []
    [path] = fetch(server, tmp_path, "/good", progress=lambda *step: steps.append(step))
    assert path.read_bytes() == CONTENT
    assert left(tmp_path) == ["file.gz"]
    assert steps[-1] == ("file.gz", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in steps] == sorted(done for _, done, _ in steps)
    assert server.seen == [("/good", None)]


def test_an_intact_file_stays_unless_forced(server, tmp_path):
    fetch(server, tmp_path, "/good")
    fetch(server, tmp_path, "/good")
    assert len(server.seen) == 1
    fetch(server, tmp_path, "/good", force=True)
    assert len(server.seen) == 2
    (tmp_path / "mnist" / "file.gz").write_bytes(b"damaged")
    assert fetch(server, tmp_path, "/good")[0].read_bytes() == CONTENT


def test_a_broken_download_is_resumed(server, tmp_path):
    with pytest.raises(InputError, match=r"closed after \d+ of 307200 bytes"):
        fetch(server, tmp_path, "/cut")
    assert left(tmp_path) == ["file.gz.part"]
    have = (tmp_path / "mnist" / "file.gz.part").stat().st_size
    assert 0 < have < len(CONTENT)
    assert fetch(server, tmp_path, "/good")[0].read_bytes() == CONTENT
    assert server.seen[-1] == ("/good", f"bytes={have}-")
    assert left(tmp_path) == ["file.gz"]


def test_the_next_mirror_goes_on_where_the_first_broke_off(server, tmp_path):
    assert fetch(server, tmp_path, "/gone", "/cut", "/good")[0].read_bytes() == CONTENT
    assert [path for path, _ in server.seen] == ["/gone", "/cut", "/good"]
    assert server.seen[-1][1] is not None


def test_a_server_without_ranges_sends_it_all_again(server, tmp_path):
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "file.gz.part").write_bytes(CONTENT[:1000])
    assert fetch(server, tmp_path, "/plain")[0].read_bytes() == CONTENT


@pytest.mark.parametrize("beginning", [b"x" * 1000, b"x" * len(CONTENT), b"x" * (len(CONTENT) + 5)])
def test_a_spoilt_beginning_is_fetched_again(server, tmp_path, beginning):
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "file.gz.part").write_bytes(beginning)
    assert fetch(server, tmp_path, "/good")[0].read_bytes() == CONTENT


@pytest.mark.parametrize(("route", "says"), [("/wrong", "md5 .* instead of .* removed"), ("/long", "more than")])
def test_wrong_content_is_removed_and_named(server, tmp_path, route, says):
    with pytest.raises(InputError, match=says):
        fetch(server, tmp_path, route)
    assert left(tmp_path) == []
    assert fetch(server, tmp_path, route, "/good")[0].read_bytes() == CONTENT


def test_all_mirrors_failing_names_each(server, tmp_path):
    with pytest.raises(InputError) as caught:
        fetch(server, tmp_path, "/gone", "/wrong")
    for part in ("file.gz", "/gone: HTTP 404", "/wrong: wrong content", "by hand"):
        assert part in str(caught.value)
    server.url = "http://127.0.0.1:9"  # nobody listens there
    with pytest.raises(InputError, match="refused"):
        fetch(server, tmp_path, "/good")


def test_a_folder_that_cannot_be_written(server, tmp_path):
    (tmp_path / "mnist").write_text("a file where the folder should be")
    with pytest.raises(InputError, match="--data-dir"):
        fetch(server, tmp_path, "/good")


def test_two_at_once_leave_one_good_file(server, tmp_path):
    threads = [threading.Thread(target=fetch, args=(server, tmp_path, "/good")) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "mnist" / "file.gz").read_bytes() == CONTENT
    assert left(tmp_path) == ["file.gz"]
    assert len(server.seen) == 1


def test_check_says_ok_missing_or_damaged(tmp_path, monkeypatch):
    content = b"labels"
    known = catalog.entry("mnist")
    md5 = hashlib.md5(content).hexdigest()
    entry = dataclasses.replace(known, contents=tuple((file, md5) for file, _ in known.contents))
    monkeypatch.setitem(catalog.CATALOG, "mnist", entry)
    assert {status.state for status in check("mnist", tmp_path)} == {"missing"}
    folder = tmp_path / "mnist"
    folder.mkdir()
    names = [file for file, _ in known.contents]
    (folder / names[0]).write_bytes(content)
    (folder / f"{names[1]}.gz").write_bytes(gzip.compress(content))
    (folder / f"{names[2]}.gz").write_bytes(gzip.compress(content)[:-9])
    (folder / names[3]).write_bytes(b"other")
    statuses = check("mnist", tmp_path)
    assert [status.state for status in statuses] == ["ok", "ok", "damaged", "damaged"]
    assert "md5" in statuses[3].note
    assert check("digits", tmp_path) == []


def test_check_of_the_cifar_archive(tmp_path):
    [status] = check("cifar10", tmp_path)
    assert (status.state, status.path) == ("missing", tmp_path / "cifar10" / "cifar-10-binary.tar.gz")
    status.path.parent.mkdir()
    status.path.write_bytes(b"half")
    assert check("cifar10", tmp_path)[0].state == "damaged"
