"""Cost of serving: thousands of streams beside their model, and ``linrnn serve`` on loopback.

First 2,000 streams are fed by one array, beside the model's step on as many rows, in turn. Then a
small forecast is served with ``--state``: 1,000 sessions are fed by requests of one session over
several connections, and by requests of all, while the service is killed with SIGKILL again and
again. Writes ``benchmarks/results/serve-cpu.md``. Exit code 1: a session lost a step whose answer
had come, read one twice, or answered otherwise than alone.
"""

import argparse
import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import linrnn
from _report import RESULTS, command_line, conditions, section, table, write_lines
from _timing import keep_memory
from linrnn import SequenceModel
from linrnn.streaming import Sessions

STREAMS = 2000
MIXERS = ("lru", "mingru", "mamba", "gru")
WIDTH, LAYERS = 16, 2
TOLERANCE = 1e-4  # of answers near 1, in float32


def beside_the_model(mixer: str, streams: int, rounds: int) -> list[str]:
    """A row of the table: the model's step in ms, and what feeding costs in multiples of it."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"d_model": WIDTH, "n_layers": LAYERS, "pool": "none"}
    model = SequenceModel(1, 1, mixer=mixer, **sizes).eval()
    names = [f"client-{i}" for i in range(streams)]
    pool, x, state = Sessions(model), torch.randn(streams, 1), model.init_state(streams)
    for name in names:
        pool.join(name)
    apart = [names[i] for i in torch.randperm(streams).tolist()]
    by_name = dict(zip(names, x, strict=True))
    calls: dict[str, Callable[[], object]] = {
        "model": lambda: model.step(x, state),
        "rows": lambda: pool.feed_rows(names, x),
        "rows apart": lambda: pool.feed_rows(apart, x),
        "by name": lambda: pool.feed(by_name),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    with torch.no_grad():
        for _ in range(rounds):
            for name, call in calls.items():  # in turn, and not counting what others compute
                begin = time.thread_time()
                call()
                times[name].append(time.thread_time() - begin)
    whole = statistics.median(times["model"])
    ratios = [statistics.median(times[name]) / whole for name in calls if name != "model"]
    return [mixer, f"{whole * 1e3:.2f}", *(f"{ratio:.2f}" for ratio in ratios)]


def trained(folder: Path) -> Path:
    """A run folder of a small forecast."""
    if not (folder / "model.safetensors").exists():
        options = ["--mixer", "lru", "--model.d-model", str(WIDTH), "--train.epochs", "1"]
        command = [sys.executable, "-m", "linrnn", "train", "mackey_glass", *options, "-q"]
        subprocess.run([*command, "--out", str(folder)], check=True)
    return folder


class Service:
    """``linrnn serve`` as a process, which may be killed."""

    def __init__(self, run: Path, state: Path) -> None:
        command = [sys.executable, "-m", "linrnn", "serve", str(run), "--state", str(state)]
        self.began = time.perf_counter()
        self.process = subprocess.Popen(
            [*command, "--port", "0", "--json"], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout
        text = ""
        while not text.endswith("}\n"):
            line = self.process.stdout.readline()
            if not line:
                raise SystemExit(f"linrnn serve ended with {self.process.wait()}")
            text += line
        self.address = json.loads(text)["url"].removeprefix("http://")
        self.started = time.perf_counter() - self.began

    def end(self, number: int) -> None:
        """Send it a signal and wait for its end."""
        self.process.send_signal(number)
        self.process.wait()
        assert self.process.stdout
        self.process.stdout.close()


class Client:
    """A connection that is kept open."""

    def __init__(self, address: str) -> None:
        self._connection = http.client.HTTPConnection(address, timeout=120)

    def post(self, path: str, body: Any) -> Any:
        """The JSON that comes back."""
        self._connection.request("POST", path, json.dumps(body))
        response = self._connection.getresponse()
        data = response.read()
        if response.status >= 300:
            raise SystemExit(f"{path}: {response.status} {data[:300]!r}")
        return json.loads(data)

    def get(self, path: str) -> Any:
        """The JSON that comes back."""
        self._connection.request("GET", path)
        return json.loads(self._connection.getresponse().read())


class Load:
    """Requests and answers of the clients.

    Args:
        x: inputs (sessions, time, 1).
        connections: that feed one session a request.
    """

    def __init__(self, x: np.ndarray, connections: int) -> None:
        self.x, self.connections = x, connections
        self.names = [f"sensor-{i}" for i in range(len(x))]
        self.heard = np.zeros(len(x), int)
        """Steps of each session to which an answer has come."""
        self.answers = np.full(x.shape, np.nan)
        self.singles: list[float] = []
        """Seconds of each request of one session."""
        self.wholes: list[float] = []
        """Seconds of each request of all sessions."""

    def feed_singles(self, address: str, until: Callable[[], bool]) -> float:
        """Feed each session by requests of its own, over all connections; seconds that took."""
        begin = time.perf_counter()
        threads = [
            threading.Thread(target=self._feed_part, args=(address, part, until))
            for part in np.array_split(np.arange(len(self.x)), self.connections)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - begin

    def _feed_part(self, address: str, part: np.ndarray, until: Callable[[], bool]) -> None:
        client = Client(address)
        try:
            for i in _for_ever(part):
                if until():
                    return
                begin = time.perf_counter()
                body = {"x": self.x[i, self.heard[i]].tolist()}
                y = client.post(f"/sessions/{self.names[i]}/feed", body)["y"]
                self.singles.append(time.perf_counter() - begin)
                self._hear(i, y)
        except (OSError, http.client.HTTPException):
            return  # it was killed

    def feed_all(self, address: str) -> None:
        """Feed all sessions a step by one request."""
        begin = time.perf_counter()
        x = self.x[np.arange(len(self.x)), self.heard].tolist()
        answer = Client(address).post("/sessions/feed", {"ids": self.names, "x": x})
        self.wholes.append(time.perf_counter() - begin)
        assert not answer["errors"]
        for i, y in enumerate(answer["y"]):
            self._hear(i, y)

    def _hear(self, i: int, y: Any) -> None:
        self.answers[i, self.heard[i]] = y
        self.heard[i] += 1

    def catch_up(self, address: str) -> tuple[int, int]:
        """Look at all sessions: steps lost, and steps read whose answers never came."""
        client, lost, unheard = Client(address), 0, 0
        for i, name in enumerate(self.names):
            steps = client.get(f"/sessions/{name}")["steps"]
            lost += max(0, self.heard[i] - steps)
            unheard += max(0, steps - self.heard[i])
            self.heard[i] = steps
        return lost, unheard


def _for_ever(part: np.ndarray) -> Iterator[int]:
    while len(part):
        yield from part.tolist()


def differences(run: Path, load: Load) -> tuple[float, int]:
    """The largest difference from a stream of its own, and the answers that were compared.

    A few sessions step by step, all of them by the model's pass over whole sequences.
    """
    loaded = linrnn.load(run)
    most = int(load.heard.max())
    expected = np.array(loaded.predict(load.x[:, :most]))
    for i in range(0, len(load.x), max(1, len(load.x) // 20)):
        stream = loaded.stream()
        for t in range(load.heard[i]):
            expected[i, t] = stream.predict(load.x[i, t])
    there = ~np.isnan(load.answers[:, :most])
    difference = np.abs(expected - load.answers[:, :most])[there]
    return float(difference.max()), int(there.sum())


def haul(
    run: Path, sessions: int, connections: int, kills: int, seconds: float
) -> tuple[list[str], bool]:
    """Serve, feed, kill and start again; lines of the page, and whether all was well."""
    x = np.random.default_rng(0).normal(1.0, 0.2, (sessions, 5000, 1))
    load, lost, unheard = Load(x, connections), 0, 0
    busy, starts = 0.0, []
    with tempfile.TemporaryDirectory() as folder:
        service = Service(run, Path(folder))
        starts.append(service.started)
        Client(service.address).post("/sessions", {"ids": load.names})
        for i in range(kills + 1):
            end = time.perf_counter() + seconds
            if i < kills:
                timer = threading.Timer(
                    seconds * (0.5 + 0.5 * ((i * 7) % 10) / 10), service.end, (signal.SIGKILL,)
                )
                timer.start()
                busy += load.feed_singles(
                    service.address, lambda end=end: time.perf_counter() > end + 60
                )
                timer.join()
                service = Service(run, Path(folder))
                starts.append(service.started)
            else:
                busy += load.feed_singles(
                    service.address, lambda end=end: time.perf_counter() > end
                )
            more_lost, more_unheard = load.catch_up(service.address)
            lost, unheard = lost + more_lost, unheard + more_unheard
            for _ in range(5):
                load.feed_all(service.address)
        service.end(signal.SIGTERM)
        stopped = service.process.returncode
    largest, compared = differences(run, load)
    fine = not lost and not stopped and largest < TOLERANCE
    lines = [
        *table(
            ("requests", "a second", "ms, median", "ms, 99 %", "sessions fed a second"),
            [
                _row(f"one session, {connections} connections", load.singles, busy, 1),
                _row(
                    f"{sessions:,} sessions, 1 connection", load.wholes, sum(load.wholes), sessions
                ),
            ],
        ),
        "",
        f"{kills} times killed by SIGKILL under load and started again: {lost} steps lost whose "
        f"answer had come, {unheard} read whose answer had not. {compared:,} answers differ from "
        f"those of a stream alone by at most {largest:.1e}. A start takes "
        f"{statistics.median(starts):.1f} s, imports and {sessions:,} states included.",
    ]
    return lines, fine


def _row(what: str, seconds: Sequence[float], busy: float, each: int) -> list[str]:
    ms = np.array(seconds) * 1e3
    rate = len(ms) / busy
    return [
        what,
        f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}",
        f"{np.median(ms):.1f}",
        f"{np.quantile(ms, 0.99):.1f}",
        f"{rate * each:,.0f}",
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, write the page, and say whether anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--run", type=Path, default=None, help="of a forecast of one channel")
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="between two kills")
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the page")
    args = parser.parse_args(argv)
    keep_memory()
    torch.set_num_threads(1)  # whose processor time is then that of a call
    head = ("mixer", "ms of the model", "rows", "rows apart", "by name")
    rows = [beside_the_model(mixer, args.streams, 25) for mixer in MIXERS]
    run = args.run or trained(Path("runs", "bench-serve"))
    lines, fine = haul(run, args.sessions, args.connections, args.kills, args.seconds)
    page = [
        "# Serving",
        "",
        *conditions(command_line(), ("torch", "numpy", "fastapi", "uvicorn")),
        f"- load of the machine as it ended: {os.getloadavg()[1]:.1f} over 5 minutes",
        "",
        f"A step of {args.streams:,} streams, {LAYERS} layers of width {WIDTH}: processor time of "
        "the model, and of feeding in multiples of it. `feed_rows` in the order in which the "
        "streams joined and in another (apart), and `feed` by name.",
        "",
        *section("streams", table(head, rows)),
        f"`linrnn serve` with {args.sessions:,} sessions that outlive it; clients share the "
        "processor with it.",
        "",
        *section("service", lines),
    ]
    write_lines(args.out / "serve-cpu.md", page)
    sys.stdout.write("\n".join(page) + "\n")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
