"""Sessions of series: answers are those of a stream alone, and nothing is lost."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from linrnn.errors import ArgumentError, DataError
from linrnn.serve import Limits, application
from linrnn.serve.journal import Journal, records
from linrnn.train._trained import TrainedModel

pytestmark = pytest.mark.unchecked


@pytest.fixture
def stream(runs):
    """A stream of the run alone."""
    return lambda: TrainedModel(runs["series"]).stream()


def close(a, b):
    np.testing.assert_allclose(np.array(a), np.array(b), rtol=0, atol=1e-5)


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(1.0, 0.2, shape)


def feed(ask, ids, x, **fields):
    response = ask.post("/sessions/feed", json={"ids": ids, "x": np.array(x).tolist(), **fields})
    assert response.status_code == 200, response.text
    return response.json()


def test_a_session_answers_as_a_stream_alone(client, stream):
    alone, x = stream(), numbers(12, 1)
    with client() as ask:
        assert ask.post("/sessions", json={"id": "a"}).json()["steps"] == 0
        for part in (x[0], x[1:4], x[4:]):
            answer = ask.post("/sessions/a/feed", json={"x": part.tolist()}).json()
            close(answer["y"], alone.predict(part))
        assert ask.get("/sessions/a").json() == {"id": "a", "model": "series", "steps": 12}
        assert ask.delete("/sessions/a").json()["steps"] == 12
        assert ask.get("/sessions/a").status_code == 404
        assert len(ask.post("/sessions").json()["id"]) == 32


def test_many_are_fed_at_once_and_a_bad_input_fails_alone(client, stream):
    ids = [f"s{i}" for i in range(50)]
    alone = {name: stream() for name in ids}
    with client() as ask:
        opened = ask.post("/sessions", json={"ids": [*ids, "s0"]}).json()
        assert opened["ids"] == ids
        assert [error["code"] for error in opened["errors"]] == ["taken"]
        x = numbers(50, 3, 1)
        answer = feed(ask, ids, x)
        assert answer["errors"] == []
        for name, row, y in zip(ids, x, answer["y"], strict=True):
            close(y, alone[name].predict(row))
        mixed = [[1.0], [[1.0], [0.5]], ["one"], [1.0, 2.0], None, [1e300], [1.0], [True]]
        names = [*ids[:6], "nobody", ids[7]]
        answer = ask.post("/sessions/feed", json={"ids": names, "x": mixed}).json()
        close(answer["y"][0], alone["s0"].predict(mixed[0]))
        close(answer["y"][1], alone["s1"].predict(mixed[1]))
        assert answer["y"][2:] == [None] * 6
        assert [error["id"] for error in answer["errors"]] == names[2:]
        assert [error["index"] for error in answer["errors"]] == [2, 3, 4, 5, 6, 7]
        steps = [ask.get(f"/sessions/{name}").json()["steps"] for name in ids[:8]]
        assert steps == [4, 5, 3, 3, 3, 3, 3, 3]
        one = ask.post("/sessions/s2/feed", json={"x": ["one"]})
        assert one.status_code == 400
        with pytest.raises(ValueError, match="session 's2': x must be numbers"):
            raise ValueError(one.json()["error"]["message"])


def test_requests_at_once_are_fed_together(client, stream):
    def one(i):
        alone, x = stream(), numbers(6, 1, seed=i)
        for row in x:
            answer = ask.post(f"/sessions/{i}/feed", json={"x": row.tolist()}).json()
            close(answer["y"], alone.predict(row))

    with client() as ask, ThreadPoolExecutor(16) as threads:
        ask.post("/sessions", json={"ids": [str(i) for i in range(16)]})
        list(threads.map(one, range(16)))
        text = ask.get("/metrics").text
        assert int(re.search(r'linrnn_fed_total\{model="series"\} (\d+)', text)[1]) == 96
        assert int(re.search(r'linrnn_calls_total\{model="series"\} (\d+)', text)[1]) <= 96


def test_a_snapshot_goes_on_elsewhere(client, runs):
    x = numbers(9, 1).tolist()
    with client() as ask:
        ask.post("/sessions", json={"id": "a"})
        ask.post("/sessions/a/feed", json={"x": x[:5]})
        data = ask.get("/sessions/a/snapshot").content
        expected = ask.post("/sessions/a/feed", json={"x": x[5:]}).json()["y"]
    with client() as ask:
        assert ask.post("/sessions/b/restore", content=data).json()["steps"] == 5
        assert ask.post("/sessions/b/feed", json={"x": x[5:]}).json()["y"] == expected
        for wrong in (b"", b"junk", bytes([*data[:-1], data[-1] ^ 1])):
            response = ask.post("/sessions/c/restore", content=wrong)
            assert response.status_code == 400
            assert response.json()["error"]["message"].startswith("snapshot: ")
        assert ask.post("/sessions/b/restore", content=data).status_code == 409
        assert ask.get("/sessions").json()["ids"] == ["b"]


def test_a_snapshot_is_restored_whatever_the_limit_of_a_request(client):
    """A service takes back what it handed out; more than a state is still too much."""
    with client(limits=Limits(body=64)) as ask:
        ask.post("/sessions", json={"id": "a"})
        ask.post("/sessions/a/feed", json={"x": [[1.0]]})
        data = ask.get("/sessions/a/snapshot").content
        assert len(data) > 64
        assert ask.post("/sessions/b/restore", content=data).json()["steps"] == 1
        assert ask.post("/sessions/c/restore", content=data * 1000).status_code == 413
        assert ask.get("/sessions").json()["ids"] == ["a", "b"]


@pytest.mark.parametrize("ending", ["clean", "crash"])
def test_states_outlive_the_service(client, stream, tmp_path, ending, runs):
    """A crash leaves what was read at the start, and the journal: here it is put back."""
    alone = {name: stream() for name in "abc"}
    before = {}
    with client(state=tmp_path) as ask:
        ask.post("/sessions", json={"ids": list("abcd")})
        for i in range(4):
            x = numbers(3, 2, 1, seed=i)
            for name, y, row in zip("abc", feed(ask, list("abc"), x)["y"], x, strict=True):
                close(y, alone[name].predict(row))
        ask.post("/sessions/b/feed", json={"x": [["bad"]]})
        data = ask.get("/sessions/a/snapshot").content
        ask.post("/sessions/e/restore", content=data)
        ask.delete("/sessions/d")
        before = {path.name: path.read_bytes() for path in (tmp_path / "series").iterdir()}
    if ending == "crash":
        for path in (tmp_path / "series").iterdir():
            path.unlink()
        for name, content in before.items():
            cut = b"\x63\x00\x00" if name.startswith("journal") else b""  # a record half-written
            (tmp_path / "series" / name).write_bytes(content + cut)
    with client(state=tmp_path) as ask:
        assert sorted(ask.get("/sessions").json()["ids"]) == ["a", "b", "c", "e"]
        assert ask.get("/sessions/b").json()["steps"] == 8
        x = numbers(3, 1, seed=9)
        for name, y, row in zip("abc", feed(ask, list("abc"), x)["y"], x, strict=True):
            close(y, alone[name].predict(row))
        # another process must not write there at the same time
        with pytest.raises(ArgumentError, match="must be used by one process"):
            application(runs, state=tmp_path)


def test_a_long_journal_becomes_states(client, tmp_path):
    with client(state=tmp_path, limits=Limits(journal=500)) as ask:
        ask.post("/sessions", json={"id": "a"})
        numbers_of = set()
        for _ in range(12):
            ask.post("/sessions/a/feed", json={"x": [1.0]})
            names = [p.name for p in (tmp_path / "series").iterdir() if "states" not in p.name]
            numbers_of |= {n for n in names if n.startswith("sessions-")}
            assert sum(n.startswith("sessions-") for n in names) == 1
            assert sum(n.startswith("journal-") for n in names) <= 1
        assert len(numbers_of) > 2
    with client(state=tmp_path) as ask:
        assert ask.get("/sessions/a").json()["steps"] == 12


def test_a_damaged_journal_is_refused(client, tmp_path, runs):
    with client(state=tmp_path) as ask:
        ask.post("/sessions", json={"id": "a"})
        ask.post("/sessions/a/feed", json={"x": [1.0]})
        (path,) = (tmp_path / "series").glob("journal-*")
        data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    (states,) = (tmp_path / "series").glob("sessions-*")
    states.rename(states.with_name(path.name.replace("journal", "sessions")[:-4] + ".safetensors"))
    with pytest.raises(DataError, match="got damage at byte 0"):
        application(runs, state=tmp_path)


def test_a_disk_that_takes_nothing_changes_nothing(client, tmp_path, monkeypatch):
    from linrnn.errors import StorageError
    from linrnn.serve import journal, store

    def full(*args, **kwargs):
        raise StorageError("the disk must have room, got none.")

    with client(state=tmp_path) as ask:
        ask.post("/sessions", json={"id": "a"})
        with monkeypatch.context() as patch:
            patch.setattr(journal, "append", full)
            patch.setattr(store.Sessions, "save_all", full)
            for _ in range(2):
                response = ask.post("/sessions/a/feed", json={"x": [1.0]})
                assert response.status_code == 507
                assert response.json()["error"]["code"] == "storage"
            assert ask.get("/sessions/a").json()["steps"] == 0
        assert ask.post("/sessions/a/feed", json={"x": [1.0]}).status_code == 200
    with client(state=tmp_path) as ask:
        assert ask.get("/sessions/a").json()["steps"] == 1


def test_limits_are_kept(client):
    limits = Limits(sessions=2, steps=3, body=2000)
    with client(limits=limits) as ask:
        opened = ask.post("/sessions", json={"ids": ["a", "b", "c"]}).json()
        assert [error["code"] for error in opened["errors"]] == ["too_many"]
        assert ask.post("/sessions", json={"id": "d"}).status_code == 429
        assert ask.post("/sessions/a/feed", json={"x": [[1.0]] * 4}).status_code == 413
        assert ask.post("/sessions/a/feed", content=b" " * 3000).status_code == 413
        assert ask.get("/sessions/a").json()["steps"] == 0


TRUTH = [
    "[true]",
    "[[1], [true]]",
    "[[true], [1.5]]",
    "[[false]]",
    "true",
    "[1.0, false]",
    "[[[true]]]",
]


@pytest.mark.parametrize("x", TRUTH)
def test_a_truth_value_is_no_number(client, x):
    """A session whose input has one is not fed; the others of the request are."""
    with client() as ask:
        ask.post("/sessions", json={"ids": ["a", "b"]})
        assert ask.post("/sessions/a/feed", content=f'{{"x": {x}}}').status_code == 400
        for fine in ("[1.0]", "[[1.0]]", "[[1.0], [2.0]]"):
            body = f'{{"ids": ["a", "b"], "x": [{x}, {fine}]}}'
            answer = ask.post("/sessions/feed", content=body).json()
            assert [error["id"] for error in answer["errors"]] == ["a"]
        assert ask.get("/sessions/a").json()["steps"] == 0
        assert ask.get("/sessions/b").json()["steps"] == 4


def test_wrong_requests_say_so(client):
    with client() as ask:
        ask.post("/sessions", json={"id": "a"})
        for path, body, text in (
            ("/sessions", b"{", "body must be JSON"),
            ("/sessions", b"[]", "body must be a JSON object"),
            ("/sessions", b'{"id": "a/b"}', "without /"),
            ("/sessions", b'{"id": "."}', "not a dot"),
            ("/sessions", b'{"ids": [".."]}', "not a dot"),
            ("/sessions", b'{"id": "b", "ids": ["c"]}', "id must be left out"),
            ("/sessions", b'{"ids": 3}', "ids must be a list"),
            ("/sessions", b'{"name": "x"}', "fields must be of model, id, ids"),
            ("/sessions/feed", b'{"ids": [], "x": []}', "ids must be a list"),
            ("/sessions/feed", b'{"ids": ["a"], "x": []}', "x must be a list with one entry"),
            ("/sessions/feed", b'{"ids": ["a", "a"], "x": [[1], [1]]}', "must each come once"),
            ("/sessions/a/feed", b'{"x": []}', "must have shape"),
            ("/sessions/a/feed", b'{"x": [NaN]}', "must be finite"),
            ("/sessions/a/feed", b'{"x": [1.0], "dt": 1.0}', "dt must be None"),
            ("/sessions/a/feed", b"[" * 100_000, "body must be JSON"),
        ):
            response = ask.post(path, content=body)
            assert response.status_code == 400, (path, body[:50], response.text)
            assert text in response.json()["error"]["message"]
        assert ask.get("/sessions/a").json()["steps"] == 0
        assert ask.get("/sessions").json()["ids"] == ["a"]


def test_a_service_says_which_kind_of_run_it_lacks(client, runs):
    body = {"prompt": "the", "max_tokens": 1}
    for name, path, lacking in (
        ("series", "/v1/completions", "a language model"),
        ("text", "/sessions", "a run that reads series"),
    ):
        with client(only=name) as ask:
            response = ask.post(path, json=body if "completions" in path else {})
            assert response.status_code == 404
            assert response.json()["error"]["message"].startswith(
                f"serve: the service must have {lacking}, got none."
            )


def test_records_come_back_and_a_cut_one_does_not(tmp_path):
    journal = Journal(tmp_path / "j")
    journal.add("open", {"names": ["a"]})
    journal.add("feed", {"names": ["a"]}, b"\x00\n\xff")
    whole = (tmp_path / "j").read_bytes()
    assert journal.size == len(whole)
    assert [(h["kind"], d) for h, d in records(journal.path)] == [
        ("open", b""),
        ("feed", b"\x00\n\xff"),
    ]
    first = len(whole) - json.dumps({"kind": "feed", "names": ["a"]}).__len__() - 1 - 3 - 12
    for end in range(first, len(whole)):
        journal.path.write_bytes(whole[:end])
        assert len(list(records(journal.path))) == 1
    assert not list(records(tmp_path / "none"))
