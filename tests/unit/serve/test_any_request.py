"""Whatever JSON holds in any place of a request: an answer or an error of ours, to that client."""

import asyncio
import json
import time

import pytest

from linrnn import serve
from linrnn.generation import Sampling
from linrnn.serve import guard
from linrnn.serve.limits import Limits
from linrnn.serve.metrics import Metrics
from linrnn.serve.writer import Text, Writer

pytestmark = pytest.mark.unchecked

# as they are written: Python's json reads NaN, infinity and lone surrogates too
VALUES = ["null", "true", "0", "-1", "1", "1.5", "9223372036854775808", "1" * 40, "1" * 400]
VALUES += ["1e400", "-1e-400", "NaN", "-Infinity", '""', '"x"', r'"\ud800"', r'"\u0000\u202e"']
VALUES += ["[]", "{}", "[null]", "[[]]", '["x"]', r'["\ud800"]', "[NaN]", "[true]", "[-1]"]
VALUES += ["[9223372036854775808]", "[[1, 2], [3]]", '{"x": 1}', '{"x": NaN}', "[{}]", "[[[1]]]"]

COMPLETION = {
    **{"prompt": '"the"', "max_tokens": "2", "max_completion_tokens": "2", "temperature": "1.0"},
    **{"top_k": "3", "top_p": "0.5", "n": "1", "stream": "false", "stop": '["x"]', "seed": "1"},
    **{
        "stream_options": "{}",
        "user": '"me"',
        "metadata": "{}",
        "echo": "false",
        "model": '"text"',
    },
}
CHAT = {"messages": '[{"role": "user", "content": "hello"}]', "max_tokens": "2"}
REQUESTS = {
    "/v1/completions": COMPLETION,
    "/v1/chat/completions": CHAT,
    "/sessions": {"model": '"series"', "id": '"new"', "ids": '["p", "q"]'},
    "/sessions/a/feed": {"model": '"series"', "x": "[[1.0]]", "dt": "null"},
    "/sessions/feed": {"ids": '["a"]', "x": "[[1.0]]", "dt": "null"},
}
CASES = [(path, field) for path, fields in REQUESTS.items() for field in fields]


def written(fields):
    return "{" + ", ".join(f'"{name}": {value}' for name, value in fields.items()) + "}"


def problem(response):
    """Why an answer is none that a client can read, or None."""
    streamed = response.headers["content-type"].startswith("text/event-stream")
    parts = [response.text]
    if streamed:
        parts = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
        parts = [part for part in parts if part != "[DONE]"]
    values = [json.loads(part, parse_constant=str.upper) for part in parts]  # no NaN
    codes = [value["error"]["code"] for value in values if "error" in value]
    if response.status_code >= 500 or "internal" in codes:
        return f"{response.status_code} {response.text[:200]}"
    return None


@pytest.mark.parametrize(("path", "field"), CASES)
def test_any_value_of_a_field(client, path, field):
    wrong = []
    with client() as ask:
        ask.post("/sessions", content=b'{"ids": ["a", "b"]}')
        for value in VALUES:
            fields = {**REQUESTS[path], field: value}
            if (path, field) == ("/sessions", "id"):
                del fields["ids"]
            for stream in ("false", "true") if "max_tokens" in fields else (None,):
                if stream is not None and field != "stream":
                    fields["stream"] = stream
                why = problem(ask.post(path, content=written(fields).encode()))
                if why is not None:
                    wrong.append(f"{field}={value[:40]}: {why}")
    assert not wrong, f"{path}: " + "\n".join(wrong)


def test_a_text_that_fails_fails_alone(runs):
    """Whatever goes wrong with one text, the others are written to their ends."""
    writer = Writer("text", runs["text"], Limits(), Metrics())

    def text(prompt, count, sampling):
        return Text(prompt, count, sampling, 1, [], time.monotonic() + 60)

    class Broken(Sampling):
        def draw(self, logits, generator):
            raise ZeroDivisionError

    fine = text([1, 2], 400, Sampling())
    bad = [text([2**63], 4, Sampling()), text([300], 4, Sampling()), text([1], 4, Broken())]
    bad += [text(["x"], 4, Sampling()), text([], 4, Sampling())]
    orders = [writer.worker.submit(order) for order in (fine, *bad)]
    assert orders[0].result(timeout=60) == "length"
    assert fine.made == 400
    for order in orders[1:]:
        assert order.exception(timeout=60) is not None
    writer.worker.close()


async def _ask(app, path, messages):
    """Call an application as a server does; messages that are to come, and what it sends."""
    sent, arriving = [], iter(messages)

    async def receive():
        message = next(arriving, None)
        return message if message is not None else await asyncio.sleep(60)

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "query_string": b""}
    await app({**scope, "headers": [(b"host", b"localhost")]}, receive, send)
    return sent


@pytest.mark.parametrize("part", [b'{"x": [[1.', b'{"prompt": "the", "max_tokens": 4000}'])
def test_a_client_that_leaves_ends_its_request(runs, part, monkeypatch):
    """It is no failure of the service, and nothing is computed for it any more."""
    cut_off = part.endswith(b".")
    logged = []
    monkeypatch.setattr(guard._LOG, "exception", lambda *args: logged.append(args))
    app = serve.application(runs)
    path = "/sessions/a/feed" if cut_off else "/v1/completions"
    body = {"type": "http.request", "body": part, "more_body": cut_off}
    start = time.monotonic()
    sent = asyncio.run(_ask(app, path, [body, {"type": "http.disconnect"}]))
    assert time.monotonic() - start < 20
    assert sent[0]["status"] == 499
    assert not logged
    for _ in range(200):
        texts = app._metrics.text()
        if 'linrnn_texts{model="text"} 0' in texts:
            break
        time.sleep(0.05)
    assert 'linrnn_texts{model="text"} 0' in texts


def test_no_tokens_are_none(client):
    with client() as ask:
        for field in ("max_tokens", "max_completion_tokens"):
            body = {"prompt": "the", field: 0}
            answer = ask.post("/v1/completions", json=body).json()
            assert answer["usage"]["completion_tokens"] == 0
