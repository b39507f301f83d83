"""The long haul: what it calls flat, and a minute of each kind in a process of its own."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("long_haul")


def hour(script, megabytes=lambda share: 300.0, files=lambda share: 5, threads=lambda share: 2):
    """Samples of an hour, of which the first ones see a process that starts; noise of 1 MB."""
    samples = []
    for i in range(720):
        share, noise = i / 719, (i * 7919 % 13 - 6) / 6
        memory = int((megabytes(share) + noise) * 1e6)
        shown = (
            memory if i > 3 else 10**8,
            files(share),
            threads(share),
            max(0, 3 * 10**6 * (i - 3)),
        )
        samples.append(script.Sample(5.0 * i, *shown))
    return samples


def flat(script, samples):
    return {t.name: t.flat for t in script.trends(samples)}


ALL_FLAT = {"resident_bytes": True, "open_files": True, "threads": True}


def test_noise_warm_up_and_one_late_step_are_flat(script):
    assert flat(script, hour(script)) == ALL_FLAT
    assert flat(script, hour(script, lambda s: 300 + 200 * min(s / 0.15, 1))) == ALL_FLAT
    assert flat(script, hour(script, lambda s: 300 + 20 * (s > 0.7))) == ALL_FLAT
    blinks = hour(
        script, files=lambda s: 5 + (int(s * 719) % 9 == 0)
    )  # a file written now and then
    assert flat(script, blinks) == ALL_FLAT


@pytest.mark.parametrize(
    ("growing", "what"),
    [
        ({"megabytes": lambda s: 300 * (1 + 0.05 * s)}, "resident_bytes"),
        ({"megabytes": lambda s: 300 + 40 * (s > 0.7)}, "resident_bytes"),
        ({"megabytes": lambda s: 300 + 2 * int(s * 12)}, "resident_bytes"),
        ({"files": lambda s: 5 + int(3 * s)}, "open_files"),
        ({"threads": lambda s: 2 + int(10 * s)}, "threads"),
    ],
)
def test_growth_is_not_flat(script, growing, what):
    assert flat(script, hour(script, **growing)) == ALL_FLAT | {what: False}


def test_page_says_what_was_seen_and_fails_on_a_wrong_exit_code(script):
    samples = hour(script)
    lines, well = script.page("stream", samples, script.INTERRUPTED, 0.2)
    text = "\n".join(lines)
    assert well
    assert "# An hour of `linrnn stream`" in text
    assert "| resident memory (MB) | 300" in text
    assert "exit code 130 (expected 130)" in text
    assert not script.page("stream", samples, 1, 0.2)[1]
    leaking = hour(script, threads=lambda s: 2 + int(10 * s))
    lines, well = script.page("train", leaking, script.INTERRUPTED, 0.2)
    assert not well
    assert any(line.startswith("| threads") and line.endswith("**no** |") for line in lines)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
@pytest.mark.parametrize("what", ["stream", "train"])
def test_a_minute_is_flat(what, tmp_path):
    words = ["--what", what, "--minutes", "0.75", "--every", "0.5", "--warm-up", "0.4"]
    folders = ["--work", str(tmp_path / "work"), "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "long_haul.py"), *words, *folders],
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = (tmp_path / f"long-haul-{what}.csv").read_text().splitlines()
    assert rows[0] == "seconds,resident_bytes,open_files,threads,done"
    assert len(rows) > 20
    assert (tmp_path / f"long-haul-{what}.md").read_text() in done.stdout
