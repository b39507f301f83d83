"""The long haul of a stream that is learned from: what it calls flat, and half a minute of it."""

import argparse
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("learn_haul")


def hour(script, ms=lambda share: 0.25, fresh=lambda share: 0.2, megabytes=lambda share: 400.0):
    """Samples of an hour with noise of 2 % in time and 1 MB."""
    looks, tokens, processor = [], 0, 3.0
    for i in range(720):
        share, noise = i / 719, (i * 7919 % 13 - 6) / 6
        tokens += 1000
        processor += ms(share) * (1 + 0.02 * noise)
        memory = int((megabytes(share) + noise) * 1e6)
        looks.append(script.Look(5.0 * i + 1, memory, 6, 1, tokens, processor, fresh(share)))
    return looks


def judged(script, looks):
    return {t.name: script.level(t) for t in script.time_trends(looks)}


def test_the_time_a_token_is_that_between_two_samples(script):
    looks = hour(script)
    assert script.time_trends(looks)[0].first == pytest.approx(0.25, rel=0.02)
    assert script.time_trends(looks)[1].first == pytest.approx(1.25, rel=0.02)
    waiting = [*looks[:300], looks[299]._replace(seconds=1498.5), *looks[300:]]
    assert script.time_trends(waiting)[0].last == pytest.approx(0.25, rel=0.02)


def test_what_slows_both_is_not_growth(script):
    busy = hour(script, lambda s: 0.25 * (1 + s), lambda s: 0.2 * (1 + s))
    assert judged(script, hour(script)) == {"ms": True, "quotient": True}
    assert judged(script, busy) == {"ms": False, "quotient": True}
    assert not judged(script, hour(script, lambda s: 0.25 * (1 + 0.2 * s)))["quotient"]


def test_the_page_says_what_was_seen(script):
    args = argparse.Namespace(learner="tbptt", warm_up=0.2)
    lines, well = script.page(hour(script), script.INTERRUPTED, args)
    text = "\n".join(lines)
    assert well
    assert "# An hour of `linrnn stream --learner tbptt`" in text
    assert "5.0% of a core, 200 tokens a second" in text
    assert "720,000 tokens learned from" in text
    assert not script.page(hour(script), 1, args)[1]
    assert not script.page(hour(script, megabytes=lambda s: 400 + 40 * s), 130, args)[1]
    lines, well = script.page(hour(script, lambda s: 0.25 + 0.1 * s), 130, args)
    assert not well
    assert any(line.startswith("| the same") and line.endswith("**no** |") for line in lines)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="reads /proc")
def test_half_a_minute_learns_at_its_pace(tmp_path):
    words = ["--minutes", "0.5", "--every", "0.5", "--no-plot"]
    folders = ["--work", str(tmp_path / "work"), "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "learn_haul.py"), *words, *folders],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        cwd=tmp_path,
    )
    page = (tmp_path / "learn-haul.md").read_text()
    assert page in done.stdout, done.stdout + done.stderr
    assert "exit code 130 (expected 130)" in page
    rows = (tmp_path / "learn-haul.csv").read_text().splitlines()
    assert len(rows) > 20
    names, first, last = rows[0].split(","), rows[1].split(","), rows[-1].split(",")
    seconds, processor, tokens = map(names.index, ("seconds", "processor_seconds", "tokens"))
    share = (float(last[processor]) - float(first[processor])) / float(last[seconds])
    assert 0.02 < share < 0.1
    assert int(last[tokens]) > 500
