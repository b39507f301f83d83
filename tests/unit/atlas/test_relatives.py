"""A system beside a map: who is nearest, and who is told apart."""

import math

import pytest

from linrnn import atlas
from linrnn.errors import ArgumentError

ROW = {"rate": 0.01, "steps": 1, "reached": None, "score": 1.0, "longer": None, "loss": 0.0}
VALUES = (2, 4, 8, 16, 32, 64, 128, 256)


def cell(name, last, seed=0, ability="parity"):
    """Parity that breaks half a step after `last`; no size is computed."""
    system = atlas.System(name=name, width=16, options={}, state=64, parameters=1)
    rows = tuple(
        atlas.Trained(value=value, fraction=float(value <= last), seconds=0.0, **ROW)
        for value in VALUES
        if value <= max(2 * last, 2)
    )
    return atlas.Cell(
        system=system, ability=ability, seed=seed, rows=rows, version="", torch="", date=""
    )


def test_the_same_choices_come_before_near_figures():
    among = [cell("minlstm", 128), cell("lru", 8), cell("rg_lru", 8), cell("mingru", 8)]
    found = atlas.relatives([cell("mingru", 8)], "mingru", among)
    assert [one.system for one in found] == ["minlstm", "rg_lru", "lru"]
    assert (found[0].apart, found[0].abilities) == (4.0, 1)
    assert set(found[0].alike) >= {"transition", "gate", "memory", "normaliser"}
    assert len(atlas.relatives([cell("mingru", 8)], "mingru", among, most=1)) == 1


def test_of_equal_choices_the_nearer_figure_comes_first():
    among = [cell("lstm", 128), cell("slstm", 16)]
    assert [one.system for one in atlas.relatives([cell("gru", 8)], "gru", among)] == [
        *("slstm", "lstm"),
    ]
    assert [one.system for one in atlas.relatives([cell("gru", 64)], "gru", among)] == [
        *("lstm", "slstm"),
    ]


def test_abilities_that_only_one_has_are_not_compared():
    (found,) = atlas.relatives([cell("gru", 8)], "gru", [cell("lstm", 8, ability="recall")])
    assert math.isnan(found.apart)
    assert found.abilities == 0


def test_one_seed_is_told_apart_beyond_a_factor_of_two_on_either_side():
    among = [cell("lru", 8), cell("s5", 32), cell("gru", 128), cell("lstm", 256), cell("s4d", 2)]
    (place,) = atlas.standings([cell("mingru", 32)], "mingru", among)
    assert (place.behind, place.ahead, place.systems) == (2, 1, 5)


def test_seeds_that_agree_tell_more_apart():
    among = [cell("lru", 16, seed) for seed in range(3)]
    ours = [cell("mingru", 32, seed) for seed in range(3)]
    assert atlas.standings(ours, "mingru", among)[0].behind == 1
    assert atlas.standings(ours[:1], "mingru", among[:1])[0].behind == 0


def test_the_page_shows_the_system_first_and_its_place_in_words():
    text = atlas.beside([cell("mingru", 8)], "mingru", [cell("minlstm", 8), cell("lru", 256)])
    assert text.startswith("## mingru beside its nearest relatives")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[0] for row in rows] == [
        *("| system", "| :---", "| mingru", "| minlstm", "| lru"),
    ]
    assert "parity, 11.3: later than 0 of 2 systems of the map, earlier than 1; 1 cannot" in text


def test_the_map_of_the_package_is_the_default():
    assert atlas.relatives(atlas.measured(), "mingru", most=1)[0].system == "minlstm"
    assert atlas.standings(atlas.measured(), "gru")


def test_a_system_without_a_cell_is_named():
    with pytest.raises(ArgumentError, match="a cell of the system 'lru', got none"):
        atlas.relatives([], "lru", [])
    with pytest.raises(ArgumentError, match="most must be"):
        atlas.relatives([cell("lru", 8)], "lru", [], most=0)
