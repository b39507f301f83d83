"""Suggestions: needs, verdicts, the order of systems, and the table that comes with the package."""

import json
import math

import pytest

from linrnn import atlas
from linrnn.atlas._measured import table
from linrnn.cli import main
from linrnn.errors import ArgumentError, DataError, UnknownNameError

ROW = {"rate": 0.01, "steps": 1, "reached": None, "score": 1.0, "longer": None, "loss": 0.0}
RECALL = next(ability for ability in atlas.ABILITIES if ability.name == "recall")


def cell(system, last, seed=0, ability="recall"):
    """A cell whose dial breaks at the geometric mean of `last` and the value after it."""
    values = next(one for one in atlas.ABILITIES if one.name == ability).values
    passed = [value for value in values if value <= last]
    fractions = [1.0] * len(passed) + [0.0] * (len(passed) < len(values))
    rows = tuple(
        atlas.Trained(value=value, fraction=part, seconds=0.0, **ROW)
        for value, part in zip(values, fractions, strict=False)
    )
    return atlas.Cell(
        system=atlas.sized(system), ability=ability, seed=seed, rows=rows,
        version="0", torch="0", date="2026-11-29",
    )  # fmt: skip


def verdicts(needs, cells):
    (one,) = atlas.suggest(needs, cells)
    return [answer.verdict for answer in one.answers]


def test_needs_are_read():
    recall, stream, parity = atlas.parse_needs("recall=32, stream=1MB,parity")
    assert (recall.name, recall.value) == ("recall", 32)
    assert (stream.name, stream.value) == ("stream", 1e6)
    assert (parity.name, parity.value) == ("parity", None)


@pytest.mark.parametrize(
    ("needs", "text"),
    [
        ("recall=many", "recall must be a whole number of pairs, got 'many'"),
        ("recall=0", "recall must be a whole number"),
        ("stream=big", "stream must be a size such as 4KB or 1MB, got 'big'"),
        ("parallel=3", "the need parallel must have no value, got 'parallel=3'"),
    ],
)
def test_a_value_that_is_none_is_refused(needs, text):
    with pytest.raises(ArgumentError, match=text):
        atlas.parse_needs(needs)


def test_an_unknown_need_lists_those_there_are(capsys):
    with pytest.raises(UnknownNameError, match=r"Did you mean 'recall'.*parity.*stream"):
        atlas.parse_needs("recal=3")
    assert main(["suggest", "--needs", ""]) == 2
    assert "Known: adding" in capsys.readouterr().err


def test_one_seed_is_unclear_within_a_factor_of_two():
    cells = [cell("mingru", 8)]  # breaks at 8 * sqrt(2)
    found = [verdicts(need, cells)[0] for need in ("recall=5", "recall=8", "recall=23")]
    assert found == ["yes", "unclear", "no"]


def test_several_seeds_answer_by_their_interval():
    same = [cell("mingru", 8, seed) for seed in range(3)]
    assert verdicts("recall=11", same) == ["yes"]
    assert verdicts("recall=12", same) == ["no"]
    spread = [cell("mingru", last, seed) for seed, last in enumerate((4, 8, 16))]
    assert verdicts("recall=11", spread) == ["unclear"]


def test_the_ends_of_the_dial_bound_what_is_known():
    last = RECALL.values[-1]
    assert verdicts(f"recall={last}", [cell("mingru", last)]) == ["yes"]
    assert verdicts(f"recall={2 * last}", [cell("mingru", last)]) == ["unclear"]
    assert verdicts("recall", [cell("mingru", 1)]) == ["no"]
    assert verdicts("recall=1", [cell("mingru", 1)]) == ["unclear"]
    assert verdicts("parity", [cell("mingru", 1)]) == ["not measured"]


def test_properties_are_read_off_the_mixer():
    assert verdicts("stream=1KB,parallel,times", [cell("gru", 8)]) == ["yes", "no", "no"]
    assert verdicts("stream=4B,parallel,times", [cell("lru", 8)]) == ["no", "yes", "yes"]
    assert verdicts("stream", [cell("attention", 8)]) == ["no"]


def test_systems_that_meet_all_needs_come_first_by_their_margin():
    cells = [cell("lru", 2), cell("mingru", 16), cell("delta_net", 64), cell("mamba", 8)]
    cells += [cell("hgrn", 8, ability="parity")]
    found = atlas.suggest("recall=8", cells)
    names = [one.system.name for one in found]
    assert names == ["delta_net", "mingru", "mamba", "hgrn", "lru"]
    assert [one.verdict for one in found] == ["yes", "yes", "unclear", "not measured", "no"]
    assert found[0].answers[0].margin == pytest.approx(math.log2(64 / 8))


def test_a_table_gives_its_cells_back(tmp_path):
    cells = [cell("mingru", 8), cell("attention", 8), cell("lru", 64, seed=1)]
    path = tmp_path / "atlas.csv"
    path.write_text(table(cells))
    assert atlas.read_table(path) == cells


@pytest.mark.parametrize("damage", ["", "a,b\n1,2\n", "flying", "cut"])
def test_a_damaged_table_is_named(tmp_path, capsys, damage):
    text = table([cell("mingru", 8)])
    text = {"flying": text.replace("recall", "flying"), "cut": text[:-40]}.get(damage, damage)
    path = tmp_path / "atlas.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=r"atlas.csv: the file must be a table of an atlas"):
        atlas.read_table(path)
    assert main(["suggest", "--needs", "recall", "--map", str(path)]) == 1
    assert "atlas.csv" in capsys.readouterr().err


def test_the_map_of_the_package_has_figures_of_its_systems():
    cells = atlas.measured()
    about = atlas.about()
    assert {cell.system.name for cell in cells} <= set(atlas.CORE)
    assert sorted({cell.seed for cell in cells}) == about["seeds"]
    days = sorted(cell.date for cell in cells)
    assert [days[0], days[-1]] == [about["first"], about["last"]]
    assert len({(c.system.name, c.ability, c.seed) for c in cells}) == len(cells)


def test_the_command_prints_systems_and_facts_about_the_map(tmp_path, capsys):
    path = tmp_path / "atlas.csv"
    path.write_text(table([cell("mingru", 8), cell("delta_net", 64)]))
    command = ["suggest", "--needs", "recall=32,parity", "--map", str(path)]
    assert main([*command, "--top", "1"]) == 0
    said = capsys.readouterr().out
    assert "delta_net  not measured  yes (> 64)  not measured" in said
    assert "mingru" not in said
    assert "2 systems, 1 seed, so that figures within a factor of two" in said
    assert "no data of parity" in said
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["total"] == 2
    assert found["systems"][0]["answers"][0]["figure"] == "> 64"


def test_all_needs_are_explained(capsys):
    assert main(["suggest", "--needs", "list"]) == 0
    said = capsys.readouterr().out
    assert "recall the value of each of several keys (pairs)" in said
    assert "parallel" in said
