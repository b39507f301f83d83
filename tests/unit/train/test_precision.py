"""float32 or bfloat16 products: what is faster, said and written down."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from linrnn import train
from linrnn.train import precision
from linrnn.train.folder import RunFolder
from linrnn.train.precision import choose_precision


class Noted(train.Reporter):
    """Keeps what a run says."""

    def __init__(self):
        self.said = []

    def noticed(self, message):
        self.said.append(message)


@pytest.mark.parametrize(
    ("half", "chosen"), [(0.004, "bf16-mixed"), (0.0099, "32-true"), (0.02, "32-true")]
)
def test_the_faster_one_is_taken_and_said(monkeypatch, half, chosen):
    clock = [0.0]
    monkeypatch.setattr(precision, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    def lasting(seconds):
        return lambda: clock.__setitem__(0, clock[0] + seconds)

    found = choose_precision({"32-true": lasting(0.01), "bf16-mixed": lasting(half)})
    assert found.precision == chosen
    assert found.why == f"100 with 32-true and {1 / half:.3g} with bf16-mixed in steps/s"
    assert 2 <= clock[0] < 2.1


def test_a_run_has_the_one_that_was_taken(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(precision, "SECONDS", 0.0)
    reporter, random = Noted(), torch.random.get_rng_state()
    config = replace(tiny, train=replace(tiny.train, epochs=1, precision="auto"))
    train.run(config, out=tmp_path / "run", reporter=reporter)
    said = [text for text in reporter.said if text.startswith("precision: ")]
    kept = RunFolder(tmp_path / "run").load_config().train.precision
    assert kept in ("32-true", "bf16-mixed")
    assert [text.split()[1] for text in said] == [kept]
    assert torch.equal(torch.random.get_rng_state(), random)


def test_the_trial_changes_no_run(tiny, tmp_path):
    """The numbers are those of a run that names what was taken."""
    config = replace(tiny, train=replace(tiny.train, epochs=1, precision="auto"))
    first = train.run(config, out=tmp_path / "a")
    named = replace(config.train, precision=RunFolder(tmp_path / "a").load_config().train.precision)
    second = train.run(replace(config, train=named), out=tmp_path / "b")
    assert first.test_loss == second.test_loss


@pytest.mark.unchecked  # there is no module to give
def test_other_devices_keep_float32():
    found = precision.trial_of_precision(None, None, "cuda")
    assert found == ("32-true", "precisions are tried on a CPU only")
