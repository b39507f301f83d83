"""Downloads, against a server in this process."""

import gzip
import hashlib
import http.server
import lzma
import threading

import pytest

from linrnn.errors import DataError
from linrnn.tasks._reading.files import Source, fetch, folder_of, obtain, read_packed

BODY = bytes(range(256)) * 2000
RIGHT = "sha256:" + hashlib.sha256(BODY).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves `BODY`; the server's ``cuts`` are after how many bytes an answer breaks off."""

    def do_GET(self):
        server = self.server
        start = int((self.headers["Range"] or "bytes=0-")[6:-1]) if server.ranges else 0
        server.starts.append(start)
        if server.status != 200:
            return self.send_error(server.status)
        if start >= len(server.body):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        if start:
            total = len(server.body)
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        self.send_header("Content-Length", str(len(server.body) - start))
        self.end_headers()
        end = start + server.cuts.pop(0) if server.cuts else None
        self.wfile.write(server.body[start:end])
        return None

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.body, server.status, server.ranges = BODY, 200, True
        server.cuts, server.starts = [], []
        server.url = f"http://127.0.0.1:{server.server_port}/file.bin"
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "file.bin"


def files(path):
    return sorted(p.name for p in path.parent.iterdir())


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_fetch(server, path, kind):
    fetch(server.url, f"{kind}:{hashlib.new(kind, BODY).hexdigest()}", path)
    assert path.read_bytes() == BODY
    assert files(path) == ["file.bin"]


def test_fetch_goes_on_after_an_interruption(server, path):
    server.cuts = [1000, 5000]
    fetch(server.url, RIGHT, path)
    assert path.read_bytes() == BODY
    assert server.starts == [0, 1000, 6000]
    assert files(path) == ["file.bin"]


def test_fetch_goes_on_where_another_process_stopped(server, path):
    path.parent.mkdir()
    (path.parent / "file.bin.part").write_bytes(BODY[:777])
    fetch(server.url, RIGHT, path)
    assert path.read_bytes() == BODY
    assert server.starts == [777]


def test_fetch_from_a_server_that_cannot_go_on(server, path):
    server.ranges, server.cuts = False, [1000]
    fetch(server.url, RIGHT, path)
    assert path.read_bytes() == BODY
    assert server.starts == [0, 0]


@pytest.mark.parametrize("start", [b"x" * 777, BODY, BODY + b"more"])
def test_fetch_starts_anew_when_the_part_is_of_another_file(server, path, start):
    path.parent.mkdir()
    (path.parent / "file.bin.part").write_bytes(start)
    fetch(server.url, RIGHT, path)
    assert path.read_bytes() == BODY
    assert files(path) == ["file.bin"]


@pytest.mark.unchecked
@pytest.mark.parametrize("body", [b"<html>not found</html>", BODY[:-1] + b"x", b""])
def test_fetch_refuses_wrong_content(server, path, body):
    server.body = body
    with pytest.raises(DataError, match=r"fetch: .*(must have the checksum sha256:|416)"):
        fetch(server.url, RIGHT, path)
    assert "file.bin" not in files(path)
    assert "file.bin.lock" not in files(path)


@pytest.mark.unchecked
def test_fetch_keeps_what_came_when_the_server_goes_away(server, path):
    server.cuts = [1000] + [0] * 20
    with pytest.raises(DataError, match=r"file\.bin must be reachable, got .*Try again"):
        fetch(server.url, RIGHT, path)
    assert files(path) == ["file.bin.part"]
    server.cuts = []
    fetch(server.url, RIGHT, path)
    assert path.read_bytes() == BODY
    assert files(path) == ["file.bin"]


@pytest.mark.unchecked
def test_fetch_404(server, path):
    server.status = 404
    with pytest.raises(DataError, match=r"fetch: http://127.*must be reachable, got 404 Not Found"):
        fetch(server.url, RIGHT, path)
    assert files(path) == []


@pytest.mark.unchecked
def test_fetch_only_from_the_web(path, tmp_path):
    (tmp_path / "secret").write_bytes(BODY)
    with pytest.raises(DataError, match="url must begin with https://, got file:"):
        fetch((tmp_path / "secret").as_uri(), RIGHT, path)
    assert not path.exists()


@pytest.mark.unchecked
def test_fetch_into_a_folder_that_cannot_be_made(server, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file\.bin must be writable, got"):
        fetch(server.url, RIGHT, tmp_path / "file" / "file.bin")


def test_obtain_downloads_once(server, monkeypatch, tmp_path):
    monkeypatch.setenv("LINRNN_DATA", str(tmp_path))
    source = Source("file.bin", server.url, RIGHT)
    for _ in range(2):
        assert obtain("smnist", source, "mnist") == tmp_path / "mnist" / "file.bin"
    assert server.starts == [0]


@pytest.mark.unchecked
def test_obtain_without_network_says_what_to_put_where(monkeypatch, tmp_path):
    monkeypatch.setenv("LINRNN_DATA", str(tmp_path))
    url = "http://127.0.0.1:1/file.bin"
    with pytest.raises(DataError) as caught:
        obtain("smnist", Source("file.bin", url, RIGHT), "mnist")
    text = str(caught.value)
    assert text.startswith(f"smnist: the data file {tmp_path / 'mnist' / 'file.bin'} must exist")
    assert f"Get file.bin from {url} and put it there" in text
    assert "--data FOLDER" in text
    assert "\n" not in text


@pytest.mark.unchecked
def test_obtain_never_writes_into_the_users_folder(server, tmp_path):
    source = Source("file.bin", server.url, RIGHT)
    with pytest.raises(DataError, match=r"file\.bin must exist, got no such file\. Get file\.bin"):
        obtain("smnist", source, "mnist", str(tmp_path))
    assert server.starts == []
    (tmp_path / "file.bin").write_bytes(b"1")
    assert obtain("smnist", source, "mnist", str(tmp_path)) == tmp_path / "file.bin"
    assert obtain("smnist", source, "mnist", str(tmp_path / "file.bin")) == tmp_path / "file.bin"


def test_folder_of(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("LINRNN_DATA", raising=False)
    assert folder_of("mnist") == tmp_path / ".cache" / "linrnn" / "mnist"
    assert folder_of("mnist", "~/x") == tmp_path / "x"
    monkeypatch.setenv("LINRNN_DATA", "~/all")
    assert folder_of("mnist") == tmp_path / "all" / "mnist"


@pytest.mark.parametrize(
    ("name", "pack"), [("a.gz", gzip.compress), ("a.xz", lzma.compress), ("a.csv", bytes)]
)
def test_read_packed(tmp_path, name, pack):
    (tmp_path / name).write_bytes(pack(BODY))
    assert read_packed(tmp_path / name, "bytes") == BODY


@pytest.mark.unchecked
@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
@pytest.mark.parametrize("end", [3, -1])
def test_read_packed_truncated(tmp_path, pack, end):
    path = tmp_path / ("a.gz" if pack is gzip.compress else "a.xz")
    path.write_bytes(pack(BODY)[:end])
    with pytest.raises(DataError, match=r"a\..z: the file must hold images, got: .*Get it anew"):
        read_packed(path, "images")
