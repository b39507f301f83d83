"""Laws: effects of what mixers declare, on figures that are made for the test."""

import pytest

from linrnn import atlas

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
