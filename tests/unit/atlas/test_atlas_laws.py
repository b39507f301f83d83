"""Laws: effects of what mixers declare, on figures that are made for the test."""

import numpy as np
import pytest

from linrnn import atlas, mixers

ROW = {"rate": 0.01, "steps": 1, "reached": None, "score": 1.0, "longer": None, "loss": 0.0}
VALUES = (8, 16, 32, 64, 128, 256, 512)
GATED = ("mingru", "minlstm", "mamba", "gla", "hgrn2")
UNGATED = ("lru", "s4d", "s5", "rwkv4", "linear_attention")


def cell(name, last):
    """Selective copying that breaks half a step after `last`; no size is computed."""
    system = atlas.System(name=name, width=16, options={}, state=64, parameters=1)
    values = [value for value in VALUES if value <= 2 * last]
    rows = tuple(
        atlas.Trained(value=value, fraction=float(value <= last), seconds=0.0, **ROW)
        for value in values
    )
    return atlas.Cell(
        system=system, ability="selective-copying", seed=0, rows=rows,
        version="", torch="", date="",
    )  # fmt: skip


def of_selective_copying(cells):
    return next(law for law in atlas.laws(cells) if law.ability == "selective-copying")


def made(with_gate, without):
    gated = [cell(name, with_gate * 2 ** (i % 2)) for i, name in enumerate(GATED)]
    return gated + [cell(name, without * 2 ** (i % 2)) for i, name in enumerate(UNGATED)]


def test_an_effect_is_the_difference_of_logarithms():
    law = of_selective_copying(made(64, 8))
    assert (law.having, law.lacking) == (5, 5)
    assert law.effect == pytest.approx(3.0)
    assert law.low < 3 < law.high
    assert law.verdict == "supported"


def test_no_effect_stays_open_and_the_contrary_is_said():
    assert of_selective_copying(made(16, 16)).verdict == "open"
    assert of_selective_copying(made(8, 128)).verdict == "contradicted"


def test_too_few_systems_give_no_law():
    law = of_selective_copying(made(64, 8)[:6])
    assert (law.having, law.lacking, law.effect) == (5, 1, None)
    assert law.verdict == "too few systems"
    assert all(law.effect is None for law in atlas.laws([]))


def test_the_largest_residual_is_of_the_system_that_differs_from_its_kind():
    cells = [cell("mingru", 8), cell("minlstm", 8), cell("rg_lru", 256), cell("mamba", 8)]
    first, *others = atlas.residuals(cells)
    assert first.system == "rg_lru"
    assert first.factors == pytest.approx(5.0)
    assert len(atlas.residuals(cells, most=2)) == 2
    assert [abs(one.factors) for one in others] == sorted(
        (abs(one.factors) for one in others), reverse=True
    )


def test_a_system_alone_of_its_kind_has_no_residual():
    assert atlas.residuals([cell("mingru", 8), cell("gru", 64)]) == []


def test_a_bound_counts_as_half_of_the_first_value_or_as_the_last():
    below, above = atlas.figure([cell("mingru", 4)]), atlas.figure([cell("mingru", 512)])
    assert atlas.height(below, "selective-copying") == 2
    assert atlas.height(above, "selective-copying") == 9


def test_a_fit_tells_two_properties_apart_that_come_together():
    """Gates bring 3 factors of two, and keys and values none, though most with one have both."""
    gated_matrices = ("gla", "gated_delta_net", "rwkv6", "rwkv7", "mlstm", "mamba2")
    ungated_matrices = ("linear_attention", "delta_net")
    gated_vectors, ungated_vectors = ("mingru", "minlstm", "mamba"), ("lru", "s5", "s4d", "rwkv4")
    cells = [cell(n, 64 * 2 ** (i % 2)) for i, n in enumerate((*gated_matrices, *gated_vectors))]
    cells += [cell(n, 8 * 2 ** (i % 2)) for i, n in enumerate(ungated_matrices + ungated_vectors)]
    (fit,) = atlas.fits(cells)
    gate, memory = (fit.effects[f] for f in ("a gate that sees the input", _MEMORY))
    assert gate[0] == pytest.approx(3.0, abs=0.5)
    assert gate[1] > 1
    assert memory[1] < 0 < memory[2]
    assert fit.systems == 15
    assert 0.4 < fit.predicted < fit.explained < 1


_MEMORY = "a memory of keys and values"


def test_a_fit_is_that_of_least_squares_with_and_without_each_system():
    names = ("gla", "rwkv6", "mlstm", "mingru", "minlstm", "mamba", "lru", "s5", "rwkv4")
    names = (*names, "linear_attention", "retnet", "hgrn2")
    cells = [cell(name, VALUES[(5 * i) % 7]) for i, name in enumerate(names)]
    (fit,) = atlas.fits(cells)
    y = np.array([atlas.height(atlas.figure([one]), "selective-copying") for one in cells])
    has = np.array([
        [f(mixers.load(n).choices) for f in atlas.FEATURES.values()] for n in names
    ], dtype=float)  # fmt: skip
    x = np.column_stack([np.ones(len(y)), has[:, (has.min(0) < 1) & (has.max(0) > 0)]])
    weights = np.linalg.lstsq(x, y, rcond=None)[0]
    assert [e[0] for e in fit.effects.values()] == pytest.approx(weights[1:].tolist())
    off = []
    for i in range(len(y)):
        rest = np.arange(len(y)) != i
        left = np.linalg.lstsq(x[rest], y[rest], rcond=None)[0]
        off.append([y[i] - x[i] @ left, y[i] - y[rest].mean()])
    ours, mean = (np.array(off) ** 2).sum(0)
    assert fit.predicted == pytest.approx(1 - ours / mean)


def test_few_systems_or_equal_figures_have_no_fit():
    assert atlas.fits(made(64, 8)[:6]) == []
    assert atlas.fits([cell(name, 8) for name in (*GATED, *UNGATED)]) == []
    assert atlas.fits([]) == []
