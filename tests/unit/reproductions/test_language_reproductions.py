"""Reproductions of language models, on a text and at sizes that take seconds."""

import math
from dataclasses import replace

import pytest
import torch

from linrnn.compare.match import count_parameters
from linrnn.reproductions import (
    Setting,
    carried_state,
    memory_shakespeare,
    minrnn_shakespeare,
    su_comparison,
)
from linrnn.reproductions._page.quoted import Quoted
from linrnn.reproductions._page.runs import Runs
from linrnn.reproductions._page.verdict import EDGE, NOT_KEPT, UNLEARNED
from linrnn.reproductions._runs import halves
from linrnn.reproductions._runs.language import longer_windows, loss_order, lower_nats, small
from linrnn.train.model import load_model
from linrnn.train.positions import PositionLoss


@pytest.fixture(autouse=True)
def _here(text_of):
    text_of(150)


def tiny(length):
    return small(length, 128, 1, 8, 1)


def setting(tmp_path, seeds=(0,)):
    return Setting(scale="cpu", seeds=seeds, out=tmp_path / "out")


def test_carried_state_tests_every_model_both_ways(tmp_path):
    what = carried_state.CarriedState(mixers=("lru",), chunks=(8,), base=tiny)
    found = what.run(setting(tmp_path, (0, 1)))
    assert found.complete
    rows = {row[0]: row[1:] for row in found.tables[0].rows}
    assert list(rows) == ["lru, kept", "lru, cleared", "lru, shuffled"]
    assert all(" ± " in cell for cells in rows.values() for cell in cells)
    assert rows["lru, kept"][0] != rows["lru, kept"][1]
    configs = {
        arm: load_model(tmp_path / "out" / "runs" / "chunks-of-8" / f"lru__{arm}-seed0")[2].train
        for arm in ("kept", "cleared", "shuffled")
    }
    assert [(c.order, c.carry_state) for c in configs.values()] == [
        ("contiguous", True),
        ("contiguous", False),
        ("shuffled", False),
    ]
    (claim,) = found.verdicts
    assert what.claims(found.runs, "cpu") == [claim]
    kept, cleared = (
        float(rows[f"lru, {arm}"][at].split()[0]) for arm, at in (("kept", 0), ("cleared", 1))
    )
    assert sum(claim.differences) / 2 == pytest.approx(cleared - kept, abs=2e-3)
    assert list(found.figures) == ["positions"]
    figure = found.figures["positions"]
    assert [axes.get_title() for axes in figure.axes] == ["lru, chunks of 8"]
    assert len(figure.axes[0].get_legend_handles_labels()[1]) == 6
    assert figure.get_suptitle() == "mean over 2 seeds, with standard errors"


def test_carried_state_shows_all_that_is_compared_on_the_same_axes():
    curve = [
        PositionLoss(first=n, last=n, loss=2.0 + n / 10, standard_error=0.01, windows=9)
        for n in (1, 2, 4)
    ]
    read = {
        chunk: {
            (carried_state.label(mixer, arm), kept): {0: curve[: 3 if chunk > 16 else 2]}
            for mixer in carried_state.MIXERS
            for arm in carried_state.ARMS
            for kept in (True, False)
        }
        for chunk in (16, 128)
    }
    del read[128]["lru, kept", True]
    figure = carried_state.CarriedState()._figures(read)["positions"]
    titles = [
        f"{mixer}, chunks of {chunk}" for chunk in (16, 128) for mixer in carried_state.MIXERS
    ]
    assert [axes.get_title() for axes in figure.axes] == titles
    assert len({(axes.get_xlim(), axes.get_ylim()) for axes in figure.axes}) == 1
    first, fourth = (
        {c.get_label(): c.lines[0].get_color() for c in figure.axes[at].containers} for at in (0, 3)
    )
    assert fourth == {label: first[label] for label in fourth}
    assert len(fourth) == 5
    assert figure.get_suptitle() == "one seed"
    assert carried_state.CarriedState()._figures({16: {}}) == {}


def test_carried_state_has_as_many_updates_at_every_length():
    configs = [carried_state.base_config(chunk) for chunk in carried_state.CHUNKS]
    assert len({c.train.batch_size * c.task_options.length for c in configs}) == 1


@pytest.mark.slow
def test_su_comparison_has_models_of_one_size():
    base = su_comparison.base_config(128)
    rows = su_comparison.rows(base)
    assert tuple(rows) == su_comparison.ORDER
    sizes = {name: count_parameters(config) for name, config in rows.items()}
    assert all(abs(size / sizes["SA"] - 1) < 0.03 for size in sizes.values()), sizes
    assert rows["GAU"].model.block == "bare"
    assert rows["RWKV"].mixer_options == {"token_shift": False}


def spoiled(part, row, measure=None):
    """Changes the runs of a row as if their loss were ten nats."""

    def change(run):
        if (run.part, run.row) != (part, row):
            return run
        if measure is None:
            return replace(run, test_loss=10.0)
        return replace(run, measures={**run.measures, measure: 10.0})

    return change


def test_su_comparison_says_order_and_change(tmp_path, monkeypatch, derived):
    monkeypatch.setattr(
        su_comparison, "rows", lambda base: {n: replace(base, mixer="lru") for n in ("LRU", "SLRU")}
    )
    what = su_comparison.SuComparison((8, 16), tiny, rates=(1e-3,))
    found = what.run(setting(tmp_path))
    judged = {claim.claim: claim for claim in found.verdicts}
    assert len(judged) == 2 * 5 + 5
    order, change = (
        judged[text]
        for text in ("length 8: LRU is better than SLRU", "LRU is worse at length 16 than at 8")
    )
    assert {order.unit, change.unit} == {"nats per character"}
    assert "of the published parameters" in order.scale
    assert judged["GAU is better at length 16 than at 8"].why_not == NOT_KEPT
    assert derived(what, found) == found.verdicts
    for part, held in (("length-8", (False, False)), ("length-16", (order.held[0], True))):
        other = {c.claim: c for c in derived(what, found, change=spoiled(part, "LRU"))}
        assert (other[order.claim].held, other[change.claim].held) == ((held[0],), (held[1],))
    claims, losses = found.tables[:2]
    assert [row[0] for row in claims.rows] == [
        "order at length 8, best first",
        "order at length 16, best first",
        "from 8 to 16",
    ]
    assert claims.rows[0][2] in ("LRU, SLRU", "SLRU, LRU")  # one seed is no order
    cells = {row[0]: row[1:] for row in losses.rows}
    short, long, shown = map(float, cells["LRU"])
    assert shown == pytest.approx(long - short, abs=2e-3)
    assert change.differences == pytest.approx([long - short], abs=2e-3)
    assert cells["GAU"] == ["not run", "not run", ""]
    assert "lengths" in found.figures


def test_an_order_is_of_differences_with_the_published_ones_beside(made_runs):
    losses = {"a": {0: 1.5, 1: 1.6}, "b": {0: 1.7, 1: 1.5}}
    printed = {"a": Quoted(1.0, 0.01), "b": Quoted(1.3, 0.01), "c": Quoted(2.0, 0.01)}
    part = made_runs("x", losses, "bits per byte", measure="nats").part("x", "at 1/2")
    (judged,) = loss_order(part, printed, measure="nats", in_nats=True)
    assert (judged.claim, judged.held) == ("a is better than b", (True, False))
    assert judged.differences == pytest.approx([0.2, -0.1])
    assert judged.printed == pytest.approx(0.3)
    assert (judged.unit, judged.scale, judged.why_not) == ("nats per character", "at 1/2", "")
    (judged,) = loss_order(part, printed, measure="nats")
    assert math.isnan(judged.printed)


def test_rows_no_better_than_chance_decide_nothing(made_runs):
    """By the metric of the runs, which has the unit of chance; a loss in nats has another."""
    part = made_runs("x", {"a": {0: 7.9}, "b": {0: 8.1}}, "bits per byte", chance=8.0).part("x")
    part = replace(part, rows=tuple(replace(run, test_loss=5.5) for run in part.rows))
    assert lower_nats(part, "a", "b", "", "").why_not == ""
    worse = made_runs("x", {"a": {0: 8.2}, "b": {0: 8.1}}, "bits per byte", chance=8.0).part("x")
    worse = replace(worse, rows=tuple(replace(run, test_loss=5.5) for run in worse.rows))
    assert lower_nats(worse, "a", "b", "", "").why_not == UNLEARNED


def test_a_change_decides_nothing_where_a_rate_of_either_length_is_at_an_end(made_runs):
    def ends(rates):
        runs = [
            run
            for lr, validation in rates.items()
            for run in made_runs("x", {"a": {0: 1.0}}, "bits", lr=lr, validation=validation).rows
        ]
        return Runs(tuple(replace(run, test_loss=1.0) for run in runs)).part("x")

    inner, end = ends({0.1: 2.0, 0.2: 1.0, 0.3: 2.0}), ends({0.1: 1.0, 0.2: 2.0})
    judged = [
        longer_windows("a", pair, "", "", gains=True)
        for pair in ((inner, inner), (inner, end), (end, inner))
    ]
    assert [claim.why_not for claim in judged] == ["", EDGE, EDGE]


def test_shakespeare_is_beside_the_published_losses(tmp_path, derived):
    column = minrnn_shakespeare.column("paper")
    assert column.config == column.paper
    small_model = replace(column.config.model, d_model=40, n_layers=1)
    config = replace(tiny(16), model=small_model, mixer_options={"expansion": 2.0})
    what = minrnn_shakespeare.MinRNNShakespeare(replace(column, config=config), rates=(1e-4, 1e-2))
    found = what.run(setting(tmp_path))
    first = {row[0]: row[1:] for row in found.tables[0].rows}
    assert [cells[0] for cells in first.values()] == ["1.548", "1.555", "1.575", "1.547"]
    assert all(0 < float(cells[1]) < math.log(256) for cells in first.values())
    (changed,) = (t for t in found.tables if t.title.endswith("as named by `linrnn train`"))
    (rates,) = (row for row in changed.rows if row[0] == "optim.lr")
    assert rates[2] == "minGRU 0.01, minLSTM 0.01, Mamba 0.01, Transformer 0.01"
    assert [row[-1] for row in found.tables[-1].rows] == ["0.01"] * 4  # 1 is worse
    assert any(n.startswith("smallest loss first: published Tr") for n in found.notes)
    assert [row[1:3] for row in found.tables[3].rows] == [["0.01", "0.01"]] * 4
    judged = next(c for c in found.verdicts if c.claim == "Transformer is better than Mamba")
    assert judged.printed == pytest.approx(0.028)
    assert judged.scale.endswith("of the width")
    assert not judged.why_not
    assert derived(what, found) == found.verdicts
    change = spoiled("tiny-shakespeare", "Transformer", halves.SECOND)
    other = next(c for c in derived(what, found, change=change) if c.claim == judged.claim)
    assert other.held == (False,)
    assert what.claims(found.runs, "paper")[0].differences != found.verdicts[0].differences
    models = {
        name: load_model(next((tmp_path / "out" / "runs").glob(f"*/{name}_at_0.01-seed0")))[0]
        for name in first
    }
    assert [m.mixers[0].__class__.__name__ for m in models.values()] == [
        "MinGRU",
        "MinLSTM",
        "Mamba",
        "Attention",
    ]
    assert models["Mamba"].blocks[0].kind == "bare"
    assert list(found.figures) == ["curves-tiny-shakespeare"]
    sizes = [sum(p.numel() for p in model.parameters()) for model in models.values()]
    assert max(sizes) <= 1.04 * min(sizes)
    assert models["Transformer"](torch.zeros(1, 4, dtype=torch.long))[0].isfinite().all()


@pytest.mark.slow
def test_matrix_memories_have_one_size_and_their_own_blocks(tmp_path, monkeypatch, derived):
    small_model = replace(tiny(16).model, d_model=64)
    monkeypatch.setattr(
        memory_shakespeare,
        "MODELS",
        {name: memory_shakespeare.MODELS[name] for name in ("mLSTM", "GLA")},
    )
    base = replace(tiny(16), model=small_model, mixer="mingru")
    what = memory_shakespeare.MemoryShakespeare(base, rates=(1e-3, 1e-2))
    found = what.run(setting(tmp_path))
    assert found.complete
    (judged,) = found.verdicts
    assert (judged.claim, judged.published) == ("mLSTM is better than GLA", "13.43 against 19.56")
    assert len(judged.differences) == 1
    assert "of the published parameters" in judged.scale
    assert derived(what, found) == found.verdicts
    for row, held in (("mLSTM", False), ("GLA", True)):
        change = spoiled("tiny-shakespeare", row, halves.SECOND)
        assert derived(what, found, change=change)[0].held == (held,)
    change = spoiled("tiny-shakespeare", "mLSTM", halves.FIRST)
    assert derived(what, found, change=change) == ()  # the first of equal rates, not the trained
    first = {row[0]: row[1:] for row in found.tables[0].rows}
    assert list(first) == ["mLSTM", "GLA"]
    assert all(0 < float(cells[0]) < math.log(256) for cells in first.values())
    runs = tmp_path / "out" / "runs"
    models = {name: load_model(next(runs.glob(f"*/{name}_at_0.01-seed0")))[0] for name in first}
    assert [m.blocks[0].kind for m in models.values()] == ["bare", "mlp"]
    sizes = [sum(p.numel() for p in model.parameters()) for model in models.values()]
    assert max(sizes) <= 1.06 * min(sizes)
    note = next(n for n in found.notes if n.startswith("smallest loss"))
    assert "published mLSTM > GLA" in note
    assert [row[0] for row in found.tables[3].rows] == ["mLSTM", "GLA"]
    assert any("the learning rates 0.001, 0.01, the same for all rows" in n for n in found.notes)
    for (name, chosen, taken, loss, _), one in zip(
        found.tables[2].rows, found.tables[0].rows, strict=True
    ):
        assert (chosen, taken) == ("0.01", "0.01")
        two = halves.halves(next(runs.glob(f"*/{name}_at_0.01-seed0")))
        assert f"{two.second:.3f}" == loss
        assert min(two) < float(one[1]) < max(two)


@pytest.mark.slow
def test_what_the_first_half_would_not_have_chosen_is_judged_by_nothing(tmp_path, monkeypatch):
    few = {name: memory_shakespeare.MODELS[name] for name in ("mLSTM", "GLA")}
    monkeypatch.setattr(memory_shakespeare, "MODELS", few)
    losses = {"mLSTM_at_0.01": (2.0, 1.0), "mLSTM_at_0.001": (1.0, 2.0)}
    monkeypatch.setattr(
        halves,
        "halves",
        lambda folder: halves.Halves(*losses.get(folder.name.split("-seed")[0], (1.0, 1.5))),
    )
    base = replace(tiny(16), model=replace(tiny(16).model, d_model=64), mixer="mingru")
    found = memory_shakespeare.MemoryShakespeare(base, rates=(1e-3, 1e-2)).run(setting(tmp_path))
    halved = {row[0]: row[1:] for row in found.tables[2].rows}
    assert halved["mLSTM"] == ["0.001", "0.01", "not trained at that rate", ""]
    assert halved["GLA"] == ["0.001", "0.01", "not trained at that rate", ""]
    assert found.verdicts == ()


def test_a_missing_text_is_an_incomplete_result(tmp_path, monkeypatch):
    monkeypatch.setattr("linrnn.tasks.lm.fetch", _no_network)
    monkeypatch.setenv("LINRNN_DATA", str(tmp_path / "empty"))
    few = {"GLA": memory_shakespeare.MODELS["GLA"]}  # widths are sought before the text is
    monkeypatch.setattr(memory_shakespeare, "MODELS", few)
    for what in (
        carried_state.CarriedState(mixers=("lru",), chunks=(8,), base=tiny),
        su_comparison.SuComparison(lengths=(8,), base=tiny),
        minrnn_shakespeare.MinRNNShakespeare(),
        memory_shakespeare.MemoryShakespeare(),
    ):
        found = what.run(setting(tmp_path))
        assert not found.complete
        assert any("input.txt" in note for note in found.notes)


def _no_network(*args):
    from linrnn.errors import DataError

    raise DataError("no network")
