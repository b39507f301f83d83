"""Who may ask: a token, or this machine alone; and what is always answered."""

import pytest

from linrnn.cli import main
from linrnn.cli import serve as verb
from linrnn.errors import ArgumentError, MissingExtraError
from linrnn.serve import Limits
from linrnn.serve.server import check_reach

pytestmark = pytest.mark.unchecked


def test_without_a_token_the_host_is_this_machine(client):
    with client() as ask:
        for host, status in (
            ("127.0.0.1:8000", 200),
            ("localhost", 200),
            ("[::1]:80", 200),
            ("example.org", 403),
            ("127.0.0.1.example.org", 403),
            ("", 403),
        ):
            assert ask.get("/v1/models", headers={"host": host}).status_code == status
        assert ask.get("/health", headers={"host": "example.org"}).status_code == 200


def test_with_a_token_every_request_brings_it(client):
    with client(token="secret") as ask:
        for value, status in (("Bearer secret", 200), ("Bearer other", 401), ("secret", 401)):
            headers = {"authorization": value, "host": "example.org"}
            assert ask.get("/v1/models", headers=headers).status_code == status
        response = ask.get("/metrics")
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "unauthorized"
        assert ask.get("/health").json()["status"] == "ok"


def test_an_address_that_others_reach_needs_a_token():
    check_reach("127.0.0.1", None)
    check_reach("0.0.0.0", "secret")
    with pytest.raises(ArgumentError, match=r"--host must be 127.0.0.1 .*, got 0\.0\.0\.0"):
        check_reach("0.0.0.0", None)


def test_paths_that_are_none_and_errors_of_ours_are_json(client, monkeypatch):
    with client() as ask:
        for path in ("/none", "/", "/sessions/", "/docs", "/openapi.json"):
            response = ask.get(path, follow_redirects=False)
            assert response.status_code == 404
            assert response.json()["error"]["code"] == "no_path"
    from linrnn.serve.series import Series

    def broken(*args):
        raise RuntimeError("a secret of ours")

    with client() as ask:
        ask.post("/sessions", json={"id": "a"})
        monkeypatch.setattr(Series, "_answer", broken)
        response = ask.post("/sessions/a/feed", json={"x": [1.0]})
        assert response.status_code == 500
        assert "secret" not in response.text
        assert response.json()["error"]["code"] == "internal"


METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def test_a_method_that_a_path_lacks_is_named_beside_those_it_has(client, runs):
    from linrnn.serve.app import Service
    from linrnn.serve.limits import Limits
    from linrnn.serve.metrics import Metrics

    service = Service(runs, None, Limits(), Metrics())
    having: dict[str, set[str]] = {}
    for path, method, _ in service.paths():
        having.setdefault(path, set()).update({method, *(["HEAD"] if method == "GET" else [])})
    service.close()
    having["/sessions/feed"] |= having["/sessions/{name}"]  # a session may have this name
    with client() as ask:
        for path, methods in having.items():
            for method in {*METHODS} - methods:
                response = ask.request(method, path.replace("{name}", "a"))
                assert response.status_code == 405, (method, path)
                assert {*response.headers["allow"].split(", ")} == methods
                if method != "HEAD":
                    error = response.json()["error"]
                    assert error["code"] == "no_method"
                    assert method in error["message"]
                    assert "path must" not in error["message"]


def test_metrics_are_the_text_of_prometheus(client):
    with client() as ask:
        ask.post("/sessions", json={"id": 'a"b'})
        text = ask.get("/metrics").text
    lines = text.splitlines()
    assert 'linrnn_sessions{model="series"} 1' in lines
    assert 'linrnn_requests_total{path="/sessions",status="201"} 1' in lines
    assert 'linrnn_request_seconds_bucket{path="/sessions",le="+Inf"} 1' in lines
    for line in lines:
        assert line.startswith("# TYPE ") or line.rpartition(" ")[2].replace(".", "").isascii()


def test_too_many_at_once_are_told_to_wait(client):
    from linrnn.serve.guard import Guard

    with client(limits=Limits(requests=1)) as ask:
        guard = ask.app
        assert isinstance(guard, Guard)
        guard._running = 1
        response = ask.get("/v1/models")
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"


def test_the_verb_says_what_is_wrong(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(verb, "missing", lambda modules: None)
    monkeypatch.delenv(verb.TOKEN, raising=False)
    (tmp_path / "token").write_text("two\nlines\n")
    for args, text in (
        (["x", "--host", "0.0.0.0"], "must be 127.0.0.1"),
        ([str(tmp_path)], "must be a run folder, or hold some"),
        ([str(tmp_path / "none")], "got no such folder"),
        (["x", "--port", "70000"], "must be from 0 to 65535"),
        (["x", "--token-file", str(tmp_path / "token")], "one line of ASCII"),
        (["x", "--token-file", str(tmp_path / "none")], "must hold a token"),
        (["x", "--max-rows", "0"], "rows must be an integer of at least 1"),
    ):
        assert main(["serve", *args]) in (1, 2)
        assert text in capsys.readouterr().err
    monkeypatch.setattr(verb, "missing", lambda modules: "fastapi")
    with pytest.raises(MissingExtraError, match=r"linrnn serve needs the package 'fastapi'.*serve"):
        verb.main(["x"])
