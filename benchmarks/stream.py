"""A gigabyte through ``linrnn stream``: its memory over time, and how fast it reads.

Trains a small byte model unless ``--run`` names one, then writes ``--gigabytes`` of text into
``linrnn stream --only-flagged`` as fast as it takes them. Writes ``benchmarks/results/stream.csv``
(seconds, bytes fed, resident memory) and ``stream.md``. Exit code 1: memory grew by more than a
twentieth after the warm-up, a twentieth of the input or 50 MB, whichever is more. An input that is
not twice as long as its warm-up is not judged.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from _report import RESULTS, command_line, conditions, write_csv

BLOCK = 1 << 16
SAMPLES = 200
GROWTH = 1.05
WARM_BYTES = 50_000_000


def log_lines(seed: int) -> bytes:
    """A block of made-up log lines, other ones for every seed."""
    events = ("accepted connection", "closed connection", "read block", "wrote block", "slept")
    lines, size, i = [], 0, seed * 7919
    while size < BLOCK:
        i += 1
        event = events[i * i % 5]
        lines.append(f"{i:010d} worker-{i * 31 % 16} {event} {i * 2654435761 % 65536}\n".encode())
        size += len(lines[-1])
    return b"".join(lines)


def resident(process_id: int) -> int:
    """Bytes of a process in memory (Linux)."""
    for line in Path(f"/proc/{process_id}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def train(folder: Path) -> Path:
    """A run folder of an LRU that has read some megabytes of such lines."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log.txt").write_bytes(b"".join(log_lines(i) for i in range(16)))
    run = folder / "run"
    if not (run / "model.safetensors").exists():
        options = ["--train.epochs", "1", "--model.d-model", "16", "--model.n-layers", "1"]
        data = ["--data", str(folder / "log.txt"), "--mixer", "lru", "--out", str(run)]
        subprocess.run([*linrnn("train", "lm"), *data, *options], check=True)
    return run


def linrnn(*words: str) -> list[str]:
    """The command in this interpreter."""
    return [sys.executable, "-m", "linrnn", *words]


def measure(run: Path, size: int) -> list[tuple[float, int, int]]:
    """Feed ``size`` bytes: seconds, bytes fed and resident bytes, some 200 times."""
    command = linrnn("stream", str(run), "--above", "1000", "--only-flagged")
    rows: list[tuple[float, int, int]] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.stdin
        first = log_lines(0)
        process.stdin.write(first)  # until the model is loaded nobody reads it
        process.stdin.flush()
        fed, start = len(first), time.monotonic()
        blocks = [log_lines(i) for i in range(1, 65)]
        for i in range(size // BLOCK):
            block = blocks[i % 64]
            process.stdin.write(block)
            fed += len(block)
            if i % max(1, size // BLOCK // SAMPLES) == 0:
                rows.append((time.monotonic() - start, fed, resident(process.pid)))
        rows.append((time.monotonic() - start, fed, resident(process.pid)))
        process.stdin.close()
        if process.wait():
            raise SystemExit(f"linrnn stream ended with {process.returncode}")
    rows.append((time.monotonic() - start, fed, rows[-1][2]))
    return rows


def verdict(rows: Sequence[tuple[float, int, int]]) -> tuple[str, bool]:
    """The trend of memory after the warm-up, in words, and whether it grew."""
    seconds, fed, _ = rows[-1]
    warm = max(WARM_BYTES, fed / 20)
    speed = f"{fed / 1e9:.3f} GB in {seconds:,.0f} s: {fed / seconds / 1e6:.3f} MB/s."
    if fed < 2 * warm:
        most = max(r for _, _, r in rows) / 1e6
        return f"{speed} Resident memory: at most {most:.0f} MB; too short to judge.", False
    first, *later = (r for _, n, r in rows if n >= warm)
    most = max(later)
    return (
        f"{speed} Resident memory: {first / 1e6:.0f} MB after the first {warm / 1e6:.0f} MB, at "
        f"most {most / 1e6:.0f} MB later ({most / first - 1:+.1%})."
    ), most > GROWTH * first


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, write both files, and say whether memory stayed flat."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--run", type=Path, default=None, help="of a language model of bytes")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of both files")
    args = parser.parse_args(argv)
    run = args.run or train(Path("runs", "bench-stream"))
    rows = measure(run, int(args.gigabytes * 1e9))
    names = ("seconds", "bytes", "resident_bytes")
    write_csv(args.out / "stream.csv", names, [(f"{s:.2f}", n, r) for s, n, r in rows])
    text, grew = verdict(rows)
    title = "# A gigabyte through `linrnn stream`"
    lines = [title, "", *conditions(command_line(), ("torch", "numpy")), "", text]
    (args.out / "stream.md").write_text("\n".join(lines) + "\n")
    sys.stdout.write("\n".join(lines) + "\n")
    return int(grew)


if __name__ == "__main__":
    sys.exit(main())
