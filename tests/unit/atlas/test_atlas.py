"""The atlas: abilities, systems of one size, and a queue of cells that is resumed."""

import json
import math
import sys
from dataclasses import replace
from typing import ClassVar

import pytest

from linrnn import atlas, mixers
from linrnn.atlas._cells import measure, write_cell
from linrnn.atlas._systems import HEAD
from linrnn.atlas._train import Training, train
from linrnn.cli import main
from linrnn.errors import DataError

PARITY = next(ability for ability in atlas.ABILITIES if ability.name == "parity")
ROW = {"rate": 0.01, "steps": 1, "reached": None, "score": 1.0, "longer": None, "loss": 0.0}


def trained(value, fraction):
    return atlas.Trained(value=value, fraction=fraction, seconds=0.0, **ROW)


def easy(folder, **options):
    """Parity of two bits by one mixer, whose rate is there already."""
    rates = folder / "state-512" / "rates"
    rates.mkdir(parents=True, exist_ok=True)
    (rates / "mingru.json").write_text('{"rate": 0.01}')
    short = atlas.Ability(**{**vars(PARITY), "values": (2,)})
    options = {"systems": ("mingru",), "abilities": (short,), "seeds": 1, **options}
    return atlas.Atlas(folder=folder, **options)


@pytest.mark.parametrize("ability", atlas.ABILITIES, ids=lambda ability: ability.name)
def test_an_ability_gets_harder_and_is_scored_from_chance_to_perfect(ability):
    assert list(ability.values) == sorted(set(ability.values))
    tasks = [ability.build(value, examples=4) for value in (ability.values[0], ability.values[-1])]
    assert tasks[0].sequence_length < tasks[1].sequence_length
    for task in tasks:
        assert ability.fraction(task, task.chance) == 0.0
        assert ability.fraction(task, float(task.higher_is_better)) == 1.0
        assert len(task.datasets().train[0]) in (2, 3)


def test_data_of_another_seed_are_other_data():
    first, same, other = (PARITY.build(64, examples=4, seed=seed) for seed in (0, 0, 1))
    x, again, another = (task.datasets().train[0][0] for task in (first, same, other))
    assert x.equal(again)
    assert not x.equal(another)


@pytest.mark.parametrize("name", ["lru", "mamba", "delta_net", "rwkv7"])
def test_systems_have_about_one_size_of_state_and_of_parameters(name):
    system = atlas.sized(name)
    assert abs(math.log2(system.state / atlas.STATE)) < 0.5
    assert abs(math.log2(system.parameters / 24_000)) < 1
    larger = atlas.sized(name, 4 * atlas.STATE)
    assert abs(math.log2(larger.state / (4 * atlas.STATE))) <= 1


def test_heads_of_a_dense_cell_are_no_size():
    assert "n_heads" not in atlas.sized("gru").options
    assert atlas.sized("attention").state is None


@pytest.mark.parametrize("name", ["kda", "gated_delta_net"])
def test_a_head_has_channels_enough_to_hold_keys_apart(name):
    """Sixty-four heads of one channel came nearest to the sizes once, and recalled nothing."""
    system = atlas.sized(name)
    mixer = mixers.load(name)(system.width, **system.options)
    assert min(mixer.d_key, mixer.d_value) >= HEAD


def test_heads_of_the_map_that_comes_with_the_package_have_channels_enough():
    for system in {cell.system.name: cell.system for cell in atlas.measured()}.values():
        options = system.options
        heads = system.width // int(options.get("n_heads", 1))
        sizes = heads, *(options[x] for x in ("d_key", "d_head") if x in options)
        assert min(sizes) >= HEAD, system


def test_every_system_of_the_core_is_a_mixer():
    assert set(atlas.CORE) <= set(mixers.names())
    assert len(set(atlas.CORE)) == len(atlas.CORE)


def test_a_dial_breaks_half_of_the_way():
    passed, failed = trained(8, 0.75), trained(16, 0.25)
    middle = atlas.breaking_point([passed, failed], 32)
    assert middle.side == "at"
    assert middle.value == pytest.approx(8 * math.sqrt(2))
    assert str(atlas.breaking_point([trained(8, 0.4)], 32)) == "< 8"
    assert str(atlas.breaking_point([passed, trained(16, 0.5)], 16)) == "> 16"


def cell(fractions, seed=0):
    rows = tuple(trained(value, part) for value, part in zip((8, 16, 32), fractions, strict=False))
    return atlas.Cell(
        system=atlas.sized("mingru"), ability="copying", seed=seed, rows=rows,
        version="", torch="", date="",
    )  # fmt: skip


def test_a_figure_is_the_geometric_mean_of_seeds_with_an_interval():
    found = atlas.figure([cell([0.75, 0.25]), cell([1.0, 0.75, 0.25])])
    assert found.middle.value == pytest.approx(16)
    assert found.low < 16 < found.high
    assert str(atlas.figure([cell([0.1]), cell([0.1]), cell([0.75, 0.25])])) == "< 8"
    assert str(atlas.figure([cell([0.75, 0.25])])) == "11.3"


def test_an_atlas_is_measured_once_and_resumed(tmp_path):
    queue, said = easy(tmp_path), []
    assert len(queue.open_pieces()) == 1
    queue.run(say=said.append)
    (measured,) = queue.cells()
    assert measured.rows[0].fraction > 0.9
    assert measured.rows[0].rate == 0.01
    assert "mingru, parity, seed 0: breaks at > 256 steps" in said[0]
    again = []
    queue.run(say=again.append)
    assert again == []
    assert queue.cells() == [measured]
    table = (queue.place / "atlas.csv").read_text().splitlines()
    assert table[0].startswith("system,width,options,state,parameters,ability,seed,value,rate,")
    assert len(table) == 2
    assert "| mingru | 64 |" in (queue.place / "atlas.md").read_text()


def test_a_training_can_be_watched_and_stays_the_same():
    looks = []
    system = atlas.sized("mingru")

    def watch(step, model, task, batch):
        looks.append((step, len(batch[0])))
        assert task.loss(model(batch[0])[0], batch[1]).isfinite()

    plain, watched = (
        train(system, PARITY, 2, rate=0.01, seed=0, steps=60, watch=how) for how in (None, watch)
    )
    assert looks[0] == (0, 32)
    assert {step % 50 for step, _ in looks} == {0}
    assert replace(plain, seconds=0.0) == replace(watched, seconds=0.0)


def test_a_training_that_was_put_down_ends_as_if_it_never_had_been():
    system, rate = atlas.sized("mingru"), {"rate": 0.01, "seed": 0, "steps": 150}
    training = Training(system, PARITY, 4, **rate)
    training.run(until=0.6)
    early = training.row()
    assert early.steps < 150
    assert early.longer is None
    training.run()
    whole = train(system, PARITY, 4, **rate)
    assert early.fraction < whole.fraction
    assert early.reached == whole.reached
    assert replace(training.row(), seconds=0.0) == replace(whole, seconds=0.0)


class Scripted:
    """Trainings that come to a part of the way at the end, and at least 0.6 before it or never."""

    ends: ClassVar = {8: 0.9, 16: 0.9, 32: 0.8, 64: 0.2}
    runs: ClassVar = []

    def __init__(self, system, ability, value, *, rate, seed):
        self.value, self.ended, self.put_down = value, False, False

    def run(self, until=0.97):
        self.runs.append(self.value)
        self.ended = self.put_down or self.ends[self.value] < until
        self.put_down = True

    def row(self, *, longer=True):
        return trained(self.value, self.ends[self.value] if self.ended else 0.6)


@pytest.mark.parametrize(
    ("ends", "runs", "parts"),
    [
        ({}, [8, 16, 32, 64, 32], [0.6, 0.6, 0.8, 0.2]),
        ({32: 0.55}, [8, 16, 32, 64, 32], [0.6, 0.6, 0.55, 0.2]),
        ({8: 0.1}, [8], [0.1]),
        ({64: 0.9}, [8, 16, 32, 64, 64], [0.6, 0.6, 0.6, 0.9]),
    ],
)
def test_only_the_two_values_at_the_break_are_trained_to_the_end(monkeypatch, ends, runs, parts):
    monkeypatch.setattr(Scripted, "ends", {**Scripted.ends, **ends})
    monkeypatch.setattr(Scripted, "runs", [])
    monkeypatch.setattr("linrnn.atlas._cells.Training", Scripted)
    short = atlas.Ability(**{**vars(PARITY), "values": (8, 16, 32, 64)})
    cell = measure(atlas.sized("mingru"), short, 0, 0.01)
    assert Scripted.runs == runs
    assert [row.fraction for row in cell.rows] == parts


def test_a_value_that_falls_below_half_when_it_is_taken_up_is_the_break(monkeypatch):
    class Falls(Scripted):
        def run(self, until=0.97):
            self.ended = until > 0.6 or self.value == 64

    monkeypatch.setattr(Scripted, "ends", {**Scripted.ends, 32: 0.4})
    monkeypatch.setattr("linrnn.atlas._cells.Training", Falls)
    short = atlas.Ability(**{**vars(PARITY), "values": (8, 16, 32, 64)})
    cell = measure(atlas.sized("mingru"), short, 0, 0.01)
    assert [(row.value, row.fraction) for row in cell.rows] == [(8, 0.6), (16, 0.6), (32, 0.4)]


def test_the_same_seed_gives_the_same_row(tmp_path):
    rows = []
    for name in ("one", "two"):
        queue = easy(tmp_path / name)
        queue.run(say=lambda line: None)
        (found,) = queue.cells()
        rows.append({**vars(found.rows[0]), "seconds": 0.0})
    assert rows[0] == rows[1]


def test_a_cell_that_another_process_is_at_is_left_to_it(tmp_path):
    from linrnn._files.storage import exclusive

    queue = easy(tmp_path)
    (queue.place / "locks").mkdir(parents=True)
    with exclusive(queue.place / "locks" / "mingru.parity.0.lock"):
        queue.run(say=lambda line: None)
        assert queue.cells() == []
    queue.run(say=lambda line: None)
    assert len(queue.cells()) == 1


def test_no_cell_is_begun_when_the_time_is_up(tmp_path):
    queue = easy(tmp_path)
    queue.run(seconds=0.0, say=lambda line: None)
    assert len(queue.open_pieces()) == 1
    assert "No cell yet" in (queue.place / "atlas.md").read_text()


@pytest.mark.parametrize("damage", ["", "[]", '{"system": 1}', "drop rows", "no such ability"])
def test_a_damaged_cell_is_named(tmp_path, damage):
    queue = easy(tmp_path)
    queue.run(say=lambda line: None)
    (path,) = (queue.place / "cells").iterdir()
    fields = json.loads(path.read_text())
    if damage == "drop rows":
        damage = json.dumps({**fields, "rows": []})
    elif damage == "no such ability":
        damage = json.dumps({**fields, "ability": "flying"})
    path.write_text(damage)
    with pytest.raises(DataError, match=rf"{path.name}: the file must be a cell of an atlas"):
        queue.cells()


def test_first_seeds_come_before_second_ones_and_times_only_where_they_are_read(tmp_path):
    queue = atlas.Atlas(folder=tmp_path, systems=("lru", "gru"), seeds=2)
    pieces = queue.pieces()
    assert [piece.seed for piece in pieces] == sorted(piece.seed for piece in pieces)
    timed = {piece.system for piece in pieces if piece.ability.timed}
    assert timed == {"lru"}


def test_the_command_prints_the_map(tmp_path, capsys):
    easy(tmp_path).run(say=lambda line: None)
    command = ["atlas", "--systems", "minGRU", "--abilities", "parity", "--seeds", "1"]
    assert main([*command, "--out", str(tmp_path), "--until", "0s", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["open"] == 0
    assert found["cells"][0]["system"] == "mingru"
    assert found["cells"][0]["rows"][0]["value"] == 2


OWN = """
from linrnn.mixers import MinGRU


class Mine(MinGRU):
    pass
"""


def test_a_layer_of_the_folder_is_on_the_map(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    (tmp_path / "mine_of_atlas.py").write_text(OWN)
    rates = tmp_path / "atlas" / "state-512" / "rates"
    rates.mkdir(parents=True)
    (rates / "mine_of_atlas-Mine.json").write_text('{"rate": 0.01}')
    command = ["atlas", "--systems", "mine_of_atlas:Mine,lru", "--abilities", "irregular-times"]
    assert main([*command, "--seeds", "1", "--until", "0s", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["open"] == 1  # it reads no times
    assert atlas.sized("mine_of_atlas:Mine").state == atlas.sized("mingru").state
    (cell, *_) = [one for one in atlas.measured() if one.system.name == "mingru"]
    mine = replace(cell, system=atlas.sized("mine_of_atlas:Mine"))
    folder = tmp_path / "atlas" / "state-512"
    write_cell(mine, folder / "cells" / "mine_of_atlas-Mine.parity.0.json")
    command[-1] = "parity"
    assert main([*command, "--seeds", "1", "--until", "0s"]) == 0
    printed = capsys.readouterr().out
    assert "## mine_of_atlas:Mine beside its nearest relatives" in printed
    assert "| mingru | all |" in printed
    assert "## lru" not in printed


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--until", "soon"], "--until must be like 90s, 30m or 2h, got 'soon'"),
        (["--seeds", "0"], "seeds must be an integer of at least 1, got 0"),
        (["--abilities", "flying"], "'flying'"),
        (["--systems", "mingur"], "Did you mean 'mingru'?"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_measured(tmp_path, capsys, arguments, text):
    assert main(["atlas", *arguments, "--out", str(tmp_path / "new")]) == 2
    assert text in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
