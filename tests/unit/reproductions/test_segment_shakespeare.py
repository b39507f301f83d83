"""Layers of segments as language models: what comes from far back, what is claimed, the page."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from linrnn.compare import Row
from linrnn.compare.match import count_parameters
from linrnn.errors import DataError
from linrnn.reproductions import Setting
from linrnn.reproductions import segment_shakespeare as page
from linrnn.reproductions._page.runs import Runs
from linrnn.reproductions._page.verdict import EDGE, NOT_KEPT
from linrnn.reproductions._runs.language import loss_from, measured_both_ways, small
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


@pytest.fixture
def claims_of(made_runs):
    """Claims by their words, of the losses of a second half, kept and cleared, by layer."""

    def claims(**losses):
        read, rows = {}, []
        for label, both in losses.items():
            folder = Path(label)
            rows.append(Row(
                label=label, metric="", values=(), failures=(), folders=(folder,),
                n_parameters=1, n_state=1, memory=None, seconds_per_step=1.0,
            ))  # fmt: skip
            for kept, loss in zip((True, False), both, strict=True):
                read[label, kept] = {0: curve(2.0, loss)}
        measures = measured_both_ways(rows, read, page.FAR)
        runs = made_runs(page.NAME, {label: {0: 3.0} for label in losses}, "bits per byte")
        runs = Runs(tuple(replace(run, measures=measures[Path(run.row)]) for run in runs.rows))
        found = page.SegmentShakespeare().claims(runs, "cpu")
        assert len(found) == len(page.CLAIMS) + len(page.REMEMBER)
        return {claim.claim: claim for claim in found}

    return claims


def test_a_claim_is_of_the_loss_with_a_kept_state(claims_of):
    found = claims_of(transformer_xl=(1.9, 2.5), compressive_transformer=(1.8, 3.0))
    better = found["compressive_transformer is better than transformer_xl"]
    assert (better.held, better.unit) == ((True,), "nats per character")
    late = (page.WINDOW - page.FAR + 1) / page.WINDOW
    assert better.differences == pytest.approx([0.1 * late])
    nothing = found["block_recurrent is better than transformer_xl"]
    assert (nothing.held, nothing.why_not) == ((), NOT_KEPT)


@pytest.mark.parametrize(("rmt", "held"), [(1.91, True), (1.87, True), (1.99, False), (1.8, False)])
def test_on_par_is_within_a_part_either_way(rmt, held, claims_of):
    claims = claims_of(transformer_xl=(1.9, 1.9), rmt=(rmt, 1.9))
    found = claims["rmt is on par with transformer_xl"]
    assert (found.held, found.within) == ((held,), 1.0)
    late = (page.WINDOW - page.FAR + 1) / page.WINDOW
    one, other = (2.0 + late * (loss - 2.0) for loss in (rmt, 1.9))
    assert found.differences == pytest.approx([100 * (other - one) / max(one, other)], abs=1e-5)


def test_what_is_far_back_helps_where_the_second_half_of_a_window_gains(claims_of):
    """The first half gains nothing here, and does not count."""
    found = claims_of(rmt=(1.8, 1.9), block_recurrent=(1.9, 1.9), infini_transformer=(2.0, 1.9))
    held = {text.split(":")[0]: claim.held for text, claim in found.items() if "more" in text}
    assert held == {
        "rmt": (True,),
        "block_recurrent": (None,),
        "infini_transformer": (False,),
        "compressive_transformer": (),
    }
    helps = found[f"rmt: what is {page.FAR} or more characters back helps"]
    assert helps.differences == pytest.approx([0.1])


def test_a_rate_at_an_end_decides_nothing(made_runs):
    values = {page.XL: {0: 2.0}, page.RECURRENT: {0: 2.0}}
    runs = []
    for lr, validation in ((1e-3, 1.0), (1e-2, 2.0), (1e-1, 3.0)):
        made = made_runs(page.NAME, values, "bits per byte", lr=lr, validation=validation)
        losses = {loss_from(1, True): 1.0}
        runs += [replace(run, measures=losses) for run in made.rows]
    claims = page.SegmentShakespeare(labels=list(values)).claims(Runs(tuple(runs)), "cpu")
    assert claims[0].claim == f"{page.RECURRENT} is better than {page.XL}"
    assert (claims[0].differences, claims[0].why_not) == ((0.0,), EDGE)


@pytest.mark.slow
def test_the_page_is_written_with_every_model_tested_both_ways(tmp_path, monkeypatch, derived):
    monkeypatch.setattr(page, "STREAMS", 2)  # the text is short
    ours = page.config()
    base = small(page.WINDOW, 8 * page.WINDOW, 1, 8, 1)
    base = replace(
        base, task_options=ours.task_options, train=replace(base.train, carry_state=True)
    )
    labels = [page.XL, page.WINDOWED, "mingru"]
    what = page.SegmentShakespeare(base, labels, (3e-2, 1e-1))
    found = what.run(Setting(scale="cpu", seeds=(0, 1), out=tmp_path))
    assert found.complete
    tested, results, tried = found.tables
    assert [row[0] for row in tested.rows] == labels
    assert all("±" in cell for row in tested.rows for cell in row[1:3])
    assert all(row[1] != row[2] for row in tested.rows)
    assert [row[2] for row in results.rows] == ["2"] * 3
    assert all(len(row) == 4 for row in tried.rows)
    (judged,) = found.verdicts
    assert judged.claim == f"{page.XL} is better than {page.WINDOWED}"
    assert len(judged.differences) == 2
    assert derived(what, found) == found.verdicts

    def spoiled(run):
        """With a loss of ten nats of one of the two."""
        spoilt = run.row == page.XL and run.measures
        return replace(run, measures=dict.fromkeys(run.measures, 10.0)) if spoilt else run

    (other,) = derived(what, found, change=spoiled)
    assert other.held == (False, False)
    assert set(found.figures) == {"gain", "curves-tiny-shakespeare"}
    runs = sorted((tmp_path / "runs").glob("*/[!.]*-seed*"))
    assert len(runs) == 9  # two rates each with a seed, the better with one more
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
    assert found.verdicts == ()
