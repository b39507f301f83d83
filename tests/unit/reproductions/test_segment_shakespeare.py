"""Layers of segments as language models: what comes from far back, what is claimed, the page."""

from dataclasses import replace

import pytest
import torch

from linrnn.compare.match import count_parameters
from linrnn.errors import DataError
from linrnn.reproductions import Setting
from linrnn.reproductions import segment_shakespeare as page
from linrnn.reproductions._runs.language import small
from linrnn.tasks.lm import LM
from linrnn.train import PositionLoss
from linrnn.train.model import build_model, load_model

each = pytest.mark.parametrize("label", page.MODELS)


@pytest.fixture(autouse=True)
def _here(text_of):
    text_of(2_000)


def test_models_are_of_one_size():
    counts = {label: count_parameters(page.sized(None, label)) for label in page.MODELS}
    assert all(abs(count / page.SIZE - 1) < 0.03 for count in counts.values()), counts


@each
def test_all_models_carry_their_state_and_share_all_but_the_layer(label):
    base, made = page.config(), page.sized(page.config(), label)
    assert made.train == base.train
    assert made.train.carry_state
    kept = replace(
        made,
        mixer=base.mixer,
        mixer_options=base.mixer_options,
        model=replace(made.model, conv_width=base.model.conv_width),
    )
    assert kept == base


@each
def test_what_is_far_back_comes_through_the_layers_that_are_said_to_remember(label):
    """Through two layers, from before the place where the second half of a window begins."""
    config = page.sized(page.config(), label)
    model = build_model(config, LM(config.task_options)).eval()
    found = {}

    def keep(module, x, y):
        y.retain_grad()
        found["x"] = y

    model.encoder.register_forward_hook(keep)
    model(torch.randint(0, 128, (1, page.WINDOW)))[0][:, page.FAR :].square().sum().backward()
    first = found["x"].grad.abs().sum((0, 2)).nonzero().min().item()
    if label in (page.WINDOWED, page.XL):
        assert page.FAR - first <= 3 * page.SEGMENT - 1
    else:
        assert first == 0


def curve(near, far):
    """The loss in both halves of a window."""
    common = {"standard_error": 0.0, "windows": 1}
    return [
        PositionLoss(first=1, last=page.FAR - 1, loss=near, **common),
        PositionLoss(first=page.FAR, last=page.WINDOW, loss=far, **common),
    ]


def read(**losses):
    """One seed of each label: the loss of the second half, kept and cleared."""
    return {
        (label, kept): {0: curve(2.0, loss)}
        for label, both in losses.items()
        for kept, loss in zip((True, False), both, strict=True)
    }


def test_a_claim_is_of_the_loss_with_a_kept_state():
    found = page.compared(read(transformer_xl=(1.9, 2.5), compressive_transformer=(1.8, 3.0)))
    held = {claim.claim: claim.held for claim in found}
    assert held["compressive_transformer is better than transformer_xl"] == (True,)
    assert held["block_recurrent is better than transformer_xl"] == ()


@pytest.mark.parametrize(("rmt", "held"), [(1.91, True), (1.87, True), (1.99, False), (1.8, False)])
def test_on_par_is_within_a_part_either_way(rmt, held):
    found = page.compared(read(transformer_xl=(1.9, 1.9), rmt=(rmt, 1.9)))
    assert {c.claim: c.held for c in found}["rmt is on par with transformer_xl"] == (held,)


def test_what_is_far_back_helps_where_the_second_half_of_a_window_gains():
    """The first half gains nothing here, and does not count."""
    losses = read(rmt=(1.8, 1.9), block_recurrent=(1.9, 1.9), infini_transformer=(2.0, 1.9))
    held = {claim.claim.split(":")[0]: claim.held for claim in page.remembering(losses)}
    assert held == {
        "rmt": (True,),
        "block_recurrent": (False,),
        "infini_transformer": (False,),
        "compressive_transformer": (),
    }
    assert page.far_gains(losses, "rmt") == {0: pytest.approx(0.1)}


@pytest.mark.slow
def test_the_page_is_written_with_every_model_tested_both_ways(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "STREAMS", 2)  # the text is short
    ours = page.config()
    base = small(page.WINDOW, 8 * page.WINDOW, 1, 8, 1)
    base = replace(
        base, task_options=ours.task_options, train=replace(base.train, carry_state=True)
    )
    labels = [page.XL, "mingru"]
    what = page.SegmentShakespeare(base, labels, (3e-2, 1e-1))
    found = what.run(Setting(scale="cpu", seeds=(0, 1), out=tmp_path))
    assert found.complete
    tested, results, tried = found.tables
    assert [row[0] for row in tested.rows] == labels
    assert all("±" in cell for row in tested.rows for cell in row[1:3])
    assert all(row[1] != row[2] for row in tested.rows)
    assert [row[2] for row in results.rows] == ["2", "2"]
    assert all(len(row) == 4 for row in tried.rows)
    assert len(found.verdicts) == len(page.CLAIMS) + len(page.REMEMBER)
    assert set(found.figures) == {"gain", "curves-tiny-shakespeare"}
    runs = sorted((tmp_path / "runs").glob("*/[!.]*-seed*"))
    assert len(runs) == 6  # two rates each with a seed, the better with one more
    assert all(load_model(folder)[2].train.carry_state for folder in runs)


def test_a_missing_text_is_an_incomplete_result(tmp_path, monkeypatch):
    def no_network(*args):
        raise DataError("no network")

    monkeypatch.setattr("linrnn.tasks.lm.fetch", no_network)
    monkeypatch.setenv("LINRNN_DATA", str(tmp_path / "empty"))
    what = page.SegmentShakespeare(page.config(), ["mingru"])
    found = what.run(Setting(scale="cpu", seeds=(0,), out=tmp_path))
    assert not found.complete
    assert any("input.txt" in note for note in found.notes)
    assert not any(claim.held for claim in found.verdicts)
