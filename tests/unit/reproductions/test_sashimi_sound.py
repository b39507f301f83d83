"""SaShiMi on raw sound: models of one size, the verdict, and a page one can listen to."""

import wave
from dataclasses import replace

import numpy as np
import pytest

from linrnn import recipes
from linrnn.compare.match import count_parameters
from linrnn.reproductions import Setting
from linrnn.reproductions import sashimi_sound as page
from linrnn.reproductions._page.report import publish, write_report
from linrnn.train.model import build_model, build_task


def test_the_plain_stack_has_as_many_parameters():
    base = recipes.load("sound").config
    plain = page.plain(base)
    assert (plain.model.tiers, plain.model.n_layers) == ((), 4)
    assert plain.model.d_ffn == 2 * plain.model.d_model
    assert count_parameters(plain) == pytest.approx(count_parameters(base), rel=0.02)


def test_the_published_model_has_its_sizes():
    config = recipes.load("sound", "paper").config
    net = build_model(config, build_task(config))
    assert [m.d_model for m in net.mixers] == [256] * 8 + [128] * 8 + [64] * 8
    assert {b.mlp.up.out_features // b.mixer.d_model for b in net.blocks} == {2}
    assert {m.d_state for m in net.mixers} == {64}
    assert [tuple(p.down.weight.shape) for p in net.between] == [(128, 256), (256, 512)]


@pytest.mark.parametrize(
    ("ours", "theirs", "held"),
    [
        ({0: 2.0, 1: 2.1}, {0: 2.2, 1: 2.3}, (True, True)),
        ({0: 2.0, 1: 2.4}, {0: 2.2, 1: 2.3}, (True, False)),
        ({1: 2.0}, {0: 1.0, 1: 2.3}, (True,)),
    ],
)
def test_the_verdict_is_that_of_the_seeds(made_runs, ours, theirs, held):
    runs = made_runs(page.NAME, {page.SASHIMI: ours, page.PLAIN: theirs}, "bits per sample")
    (found,) = page.SashimiSound().claims(runs, "cpu")
    assert (found.held, found.ours) == (held, True)


def test_a_small_run_leaves_a_page_with_a_sound(tmp_path, monkeypatch, made_digits, runs_here):
    monkeypatch.setenv("LINRNN_DATA", str(made_digits))
    base = recipes.load("sound").config
    base = replace(
        base,
        mixer="mingru",
        mixer_options={},
        task_options=replace(base.task_options, length=16),
        model=replace(base.model, d_model=4, tiers=(2,), d_ffn=8),
        train=replace(base.train, epochs=1, batch_size=4),
    )
    setting = Setting(scale="cpu", seeds=(0,), out=tmp_path / "out")
    found = page.SashimiSound(base, seconds=0.01).run(setting)
    assert found.complete
    assert [row[0] for row in found.tables[0].rows] == [page.SASHIMI, page.PLAIN]
    assert [len(judged.held) for judged in found.verdicts] == [1]
    assert set(found.figures) == {"waveform", "curves-spoken-digits"}
    files = write_report("sashimi-sound", page.SashimiSound, setting, found, 1.0)
    publish(files, tmp_path / "results")
    assert "[sashimi.wav](sashimi.wav)" in (tmp_path / "results" / "report.md").read_text()
    with wave.open(str(tmp_path / "results" / "sashimi.wav")) as clip:
        assert clip.getparams()[:4] == (1, 2, 8000, 80)
        assert len(set(np.frombuffer(clip.readframes(80), "<i2"))) > 20


@pytest.fixture
def made_digits(tmp_path, pytestconfig, monkeypatch):
    monkeypatch.syspath_prepend(pytestconfig.rootpath / "tests" / "unit" / "tasks")
    from made_data import wav, write_tar

    clips = {
        f"recordings/{d}_jo_{n}.wav": wav(
            (3000 * np.sin(np.arange(200) / (d + 1))).astype(int), 8000
        )
        for d in range(2)
        for n in (0, 5, 9)
    }
    write_tar(tmp_path / "fsdd" / "fsdd.tar.gz", clips)
    return tmp_path
