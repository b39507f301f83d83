"""The service as a process on loopback: killed, stopped, started again."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pytest

from linrnn.train._trained import TrainedModel

pytestmark = [pytest.mark.unchecked, pytest.mark.slow]


class Service:
    """``linrnn serve`` with a port of the system's choice."""

    def __init__(self, *arguments, **environment):
        command = [sys.executable, "-m", "linrnn", "serve", *map(str, arguments), "--port", "0"]
        self.process = subprocess.Popen(
            [*command, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        text = ""
        while not text.endswith("}\n"):
            line = self.process.stdout.readline()
            if not line:
                raise RuntimeError(self.process.stderr.read())
            text += line
        self.url = json.loads(text)["url"]

    def ask(self, method, path, body=None, **headers):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def stop(self, number):
        self.process.send_signal(number)
        code = self.process.wait(60)
        self.process.stdout.close()
        self.process.stderr.close()
        return code


@pytest.fixture(autouse=True)
def installed():
    for name in ("fastapi", "uvicorn"):
        pytest.importorskip(name, reason="needs the extra serve")


def test_what_was_answered_outlives_a_kill_and_a_stop(folder, runs, tmp_path):
    alone = TrainedModel(runs["series"]).stream()
    x = np.random.default_rng(0).normal(1.0, 0.2, (9, 1))
    for i, number in enumerate((signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGINT)):
        service = Service(folder / "series", "--state", tmp_path)
        if i == 0:
            assert service.ask("POST", "/sessions", {"id": "a"})[0] == 201
        for row in x[2 * i : 2 * i + 2]:
            status, answer = service.ask("POST", "/sessions/a/feed", {"x": row.tolist()})
            assert status == 200
            np.testing.assert_allclose(json.loads(answer)["y"], alone.predict(row), atol=1e-5)
        assert service.stop(number) == (-signal.SIGKILL if number == signal.SIGKILL else 0)
    service = Service(folder / "series", "--state", tmp_path)
    assert json.loads(service.ask("GET", "/sessions/a")[1])["steps"] == 8
    assert service.stop(signal.SIGTERM) == 0


def test_a_stop_waits_for_what_is_being_written(folder):
    service, answers = Service(folder / "text"), []
    body = {"prompt": "the", "max_tokens": 2000, "seed": 0}

    def write():
        answers.append(service.ask("POST", "/v1/completions", body))

    thread = threading.Thread(target=write)
    thread.start()
    deadline = time.monotonic() + 30
    while b'linrnn_texts{model="text"} 1' not in service.ask("GET", "/metrics")[1]:
        assert time.monotonic() < deadline
        assert not answers, "it was written before anybody could stop it"
    assert service.stop(signal.SIGTERM) == 0
    thread.join(60)
    ((status, answer),) = answers
    assert status == 200
    assert json.loads(answer)["usage"]["completion_tokens"] == 2000


def test_a_token_comes_from_the_environment_or_a_file(folder, tmp_path):
    (tmp_path / "token").write_text("secret\n")
    for service in (
        Service(folder / "series", LINRNN_TOKEN="secret"),
        Service(folder / "series", "--token-file", tmp_path / "token"),
    ):
        assert service.ask("GET", "/sessions")[0] == 401
        assert service.ask("GET", "/sessions", authorization="Bearer secret")[0] == 200
        assert service.stop(signal.SIGTERM) == 0
