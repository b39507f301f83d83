"""The page of windows: the untrained memory, the LSTM beside it, and the claims."""

import pytest
import torch

from linrnn.reproductions import Setting
from linrnn.reproductions import lmu_capacity as page
from linrnn.reproductions._page.verdict import verdicts

SMALL = page.Size(memories=(20, 40), lstms=(10,), train=6, validation=2, test=3, batch=4, epochs=2)


def test_the_memory_gives_the_errors_of_a_loop():
    size = page.Size(test=2)
    signal = page._signals(2, 30, 1, 0)
    a, b = page.dense(*page.lmu_system(page.ORDER), 1 / 29.5)
    m, squares = torch.zeros(2, page.ORDER).double(), torch.zeros(5).double()
    for t in range(75):
        m = m @ a.T + signal[:, t, None] * b
        for i, delay in enumerate((0, 7, 15, 22, 30)):
            degrees = torch.arange(page.ORDER)
            place = torch.tensor(i / 2 - 1, dtype=torch.float64)
            estimate = m @ torch.special.legendre_polynomial_p(place, degrees)
            if t >= 30:
                squares[i] += (estimate - signal[:, t - delay]).square().sum()
    torch.testing.assert_close(
        torch.tensor(page._memory(30, 1, size)["errors"]).double(), squares / (2 * 45)
    )


def test_errors_of_the_memory_are_those_of_the_published_figure():
    """It is read off to about half a decade; 100 sequences there, four here."""
    for window in (100, 1_000):
        errors = page._memory(window, 0, page.Size(test=4))["errors"]
        mean = sum(errors) / len(errors)
        assert page.DRAWN[window] / 3 < mean < 3 * page.DRAWN[window]


def test_targets_are_the_signal_after_each_delay():
    signal = torch.arange(1.0, 26.0)[None]
    target = page._targets(signal, 10)
    assert target.shape == (1, 25, 5)
    for i, delay in enumerate((0, 2, 5, 7, 10)):
        assert torch.equal(target[0, delay:, i], signal[0, : 25 - delay])
        assert not target[0, :delay, i].any()


def test_a_tiny_run_goes_on_from_its_folder(tmp_path):
    what = page.LMUCapacity(SMALL)
    setting = Setting(scale="paper", seeds=(0, 1), out=tmp_path)
    findings = what.run(setting)
    errors, losses = findings.tables
    assert [row[0] for row in errors.rows] == [
        "LMU, not trained at 20",
        "LMU, not trained at 40",
        "LSTM at 10",
    ]
    assert [row[0] for row in losses.rows] == ["10"]
    written = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    assert len(written) == 6
    again = what.run(setting)
    assert again.runs.csv() == findings.runs.csv()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json")} == written


def test_claims_have_the_printed_losses(made_runs):
    losses = {
        page.label(page.LSTM, 100): {seed: 0.0173 + 1e-4 * seed for seed in range(5)},
        page.label(page.LSTM, 400): {seed: 0.0702 + 2e-4 * (seed % 2) for seed in range(5)},
    }
    runs = made_runs(page.PART, losses, "mse", measure="validation")
    (judged,) = page.LMUCapacity().claims(runs, "paper")
    assert (judged.scale, judged.printed) == ("", pytest.approx(0.0528))
    assert [verdict.word for verdict in verdicts([judged], 5)] == ["reproduced"]
