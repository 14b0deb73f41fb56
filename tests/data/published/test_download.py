"""Downloads from a real server on localhost: complete, resumed, refused, damaged."""

import dataclasses
import gzip
import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fedtilt.data import download, verify
from fedtilt.data.published import catalog
from fedtilt.data.published.entry import PublishedFile
from fedtilt.errors import InputError

CONTENT = bytes(range(256)) * 1200  # some 300 kB, several chunks


class Handler(BaseHTTPRequestHandler):
    """/good serves ranges, /plain ignores them, /cut stops half way, /wrong has other content, /long too much."""

    def do_GET(self):
        requested = self.headers.get("Range")
        self.server.requests.append((self.path, requested))
        body = {"/wrong": CONTENT[::-1], "/long": CONTENT + b"more"}.get(self.path, CONTENT)
        if self.path == "/gone":
            self.send_error(404)
            return
        start = int(requested.removeprefix("bytes=").rstrip("-")) if requested and self.path != "/plain" else 0
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
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.requests = []
        http.url = f"http://127.0.0.1:{http.server_port}"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield http
        http.shutdown()
        thread.join()


def download_from(server, folder, *routes, **settings):
    urls = tuple(server.url + route for route in routes)
    md5 = hashlib.md5(CONTENT).hexdigest()
    file = PublishedFile(path="mnist/file.gz", size=len(CONTENT), md5=md5, urls=urls)
    return download("mnist", folder, files=[file], timeout=5, **settings)


def files_in(folder):
    return sorted(path.name for path in (folder / "mnist").iterdir())


def test_a_complete_download_reports_progress(server, tmp_path):
    steps = []
    [path] = download_from(server, tmp_path, "/good", progress=lambda *step: steps.append(step))
    assert path.read_bytes() == CONTENT
    assert files_in(tmp_path) == ["file.gz"]
    assert steps[-1] == ("file.gz", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in steps] == sorted(done for _, done, _ in steps)
    assert server.requests == [("/good", None)]


def test_an_intact_file_is_downloaded_again_only_if_forced(server, tmp_path):
    download_from(server, tmp_path, "/good")
    download_from(server, tmp_path, "/good")
    assert len(server.requests) == 1
    download_from(server, tmp_path, "/good", force=True)
    assert len(server.requests) == 2
    (tmp_path / "mnist" / "file.gz").write_bytes(b"damaged")
    assert download_from(server, tmp_path, "/good")[0].read_bytes() == CONTENT


def test_a_broken_download_is_resumed(server, tmp_path):
    with pytest.raises(InputError, match=r"closed after \d+ of 307200 bytes"):
        download_from(server, tmp_path, "/cut")
    assert files_in(tmp_path) == ["file.gz.part"]
    size = (tmp_path / "mnist" / "file.gz.part").stat().st_size
    assert 0 < size < len(CONTENT)
    assert download_from(server, tmp_path, "/good")[0].read_bytes() == CONTENT
    assert server.requests[-1] == ("/good", f"bytes={size}-")
    assert files_in(tmp_path) == ["file.gz"]


def test_a_download_does_not_write_through_a_link(server, tmp_path):
    (tmp_path / "mine.txt").write_bytes(b"mine")
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "file.gz.part").symlink_to(tmp_path / "mine.txt")
    with pytest.raises(InputError, match="file.gz.part cannot be written: Too many levels of symbolic links"):
        download_from(server, tmp_path, "/good")
    assert (tmp_path / "mine.txt").read_bytes() == b"mine"


def test_the_next_mirror_resumes_the_download(server, tmp_path):
    assert download_from(server, tmp_path, "/gone", "/cut", "/good")[0].read_bytes() == CONTENT
    assert [path for path, _ in server.requests] == ["/gone", "/cut", "/good"]
    assert server.requests[-1][1] is not None


def test_a_server_without_ranges_sends_the_whole_file(server, tmp_path):
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "file.gz.part").write_bytes(CONTENT[:1000])
    assert download_from(server, tmp_path, "/plain")[0].read_bytes() == CONTENT


@pytest.mark.parametrize("beginning", [b"x" * 1000, b"x" * len(CONTENT), b"x" * (len(CONTENT) + 5)])
def test_a_wrong_beginning_is_downloaded_again(server, tmp_path, beginning):
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "file.gz.part").write_bytes(beginning)
    assert download_from(server, tmp_path, "/good")[0].read_bytes() == CONTENT


@pytest.mark.parametrize(("route", "message"), [("/wrong", "md5 .* instead of .* removed"), ("/long", "more than")])
def test_wrong_content_is_removed_and_reported(server, tmp_path, route, message):
    with pytest.raises(InputError, match=message):
        download_from(server, tmp_path, route)
    assert files_in(tmp_path) == []
    assert download_from(server, tmp_path, route, "/good")[0].read_bytes() == CONTENT


def test_the_error_lists_every_failed_mirror(server, tmp_path):
    with pytest.raises(InputError) as caught:
        download_from(server, tmp_path, "/gone", "/wrong")
    for part in ("file.gz", "/gone: HTTP 404", "/wrong: wrong content", "by hand"):
        assert part in str(caught.value)
    server.url = "http://127.0.0.1:9"  # no server
    with pytest.raises(InputError, match="refused"):
        download_from(server, tmp_path, "/good")


def test_a_folder_that_cannot_be_written_is_refused(server, tmp_path):
    (tmp_path / "mnist").write_text("a file where the folder should be")
    with pytest.raises(InputError, match="--data-dir"):
        download_from(server, tmp_path, "/good")


def test_parallel_downloads_write_one_good_file(server, tmp_path):
    threads = [threading.Thread(target=download_from, args=(server, tmp_path, "/good")) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "mnist" / "file.gz").read_bytes() == CONTENT
    assert files_in(tmp_path) == ["file.gz"]
    assert len(server.requests) == 1


def test_check_reports_ok_missing_or_damaged(tmp_path, monkeypatch):
    content = b"labels"
    known = catalog.entry("mnist")
    md5 = hashlib.md5(content).hexdigest()
    entry = dataclasses.replace(known, contents=tuple(c._replace(md5=md5) for c in known.contents))
    monkeypatch.setitem(catalog.CATALOG, "mnist", entry)
    assert {status.state for status in verify("mnist", tmp_path)} == {"missing"}
    folder = tmp_path / "mnist"
    folder.mkdir()
    names = [c.name for c in known.contents]
    (folder / names[0]).write_bytes(content)
    (folder / f"{names[1]}.gz").write_bytes(gzip.compress(content))
    (folder / f"{names[2]}.gz").write_bytes(gzip.compress(content)[:-9])
    (folder / names[3]).write_bytes(b"other")
    statuses = verify("mnist", tmp_path)
    assert [status.state for status in statuses] == ["ok", "ok", "damaged", "damaged"]
    assert "md5" in statuses[3].note
    assert verify("digits", tmp_path) == []


def test_check_of_the_cifar_archive(tmp_path):
    [status] = verify("cifar10", tmp_path)
    assert (status.state, status.path) == ("missing", tmp_path / "cifar10" / "cifar-10-binary.tar.gz")
    status.path.parent.mkdir()
    status.path.write_bytes(b"half")
    assert verify("cifar10", tmp_path)[0].state == "damaged"
