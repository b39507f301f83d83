"""One rule for every page: seeds that are needed, claims seed by seed, orders without overlaps."""

import csv
import random
import re
from dataclasses import replace
from importlib import import_module
from math import inf
from pathlib import Path

import pytest

from linrnn import reproductions
from linrnn.reproductions import (
    Findings,
    Setting,
    Table,
    carried_state,
    lru_proposition_3,
    su_comparison,
)
from linrnn.reproductions._page import verdict as rules
from linrnn.reproductions._page.quoted import FAILS, Quoted
from linrnn.reproductions._page.report import publish, write_report
from linrnn.reproductions._page.verdict import Judged, groups, ordered, printed_order
from linrnn.reproductions._runs.timing import NOT_HERE


@pytest.mark.parametrize(
    ("held", "need", "words"),
    [
        ((True,) * 5, 5, "confirmed"),
        ((False,) * 5, 5, "contradicted"),
        ((True,) * 4 + (False,), 5, "undecided"),
        ((True,) * 3, 5, "undecided (3 of 5 seeds)"),
        ((False,) * 3, 3, "contradicted"),
        ((), 3, "undecided (0 of 3 seeds)"),
    ],
)
def test_a_verdict_needs_its_seeds(held, need, words):
    assert Judged("a claim", "printed", held).cells(need)[-1] == words


def test_rounds_stand_in_place_of_seeds():
    judged = Judged("a is faster", "2×", (True, True), "rounds")
    assert judged.cells(3)[2:] == ["holds with 2 of 2 rounds", "undecided (2 of 3 rounds)"]
    assert judged.cells(2)[-1] == "confirmed"


def test_a_printed_order_claims_only_what_its_errors_leave():
    printed = {"a": Quoted(50, 1), "b": Quoted(51, 1), "c": Quoted(60, 1), "d": FAILS}
    assert rules.steps(printed) == [("c", "b"), ("c", "a")]
    assert rules.steps(printed, higher_is_better=False) == [("a", "c"), ("b", "c")]
    assert printed_order({k: printed[k] for k in "abc"}) == "c > b, a"


def test_a_printed_order_claims_its_ends_beside_its_steps():
    printed = {name: Quoted(10.0 * n, 1.0) for n, name in enumerate("abcd")}
    assert rules.steps(printed) == [("d", "c"), ("d", "a"), ("c", "b"), ("b", "a")]
    # of rows in one band the one before and the one behind it are told from all of them
    printed = {"a": Quoted(0, 1), "b": Quoted(10, 1), "c": Quoted(11, 1), "d": Quoted(20, 1)}
    found = set(rules.steps(printed))
    assert found == {("d", "c"), ("d", "b"), ("d", "a"), ("c", "a"), ("b", "a")}


def test_an_error_that_is_not_printed_is_not_zero():
    assert rules.steps({"a": Quoted(1.0), "b": Quoted(2.0)}) == []  # nobody knows
    assert printed_order({"a": Quoted(1.0), "b": Quoted(2.0)}) == "b, a"
    assert rules.steps({"a": Quoted(1.0), "b": Quoted(2.0), "c": Quoted(2.1, 0.5)}) == []
    assert rules.steps({"a": Quoted(1.0), "b": Quoted(3.0), "c": Quoted(3.1, 0.5)}) != []
    assert rules.steps({n: Quoted(v, taken=0.1) for n, v in zip("ab", (1.0, 2.0), strict=True)})
    assert Quoted(1.0, taken=0.1).text == "1.0"


@pytest.mark.parametrize("name", ["minrnn_shakespeare", "memory_shakespeare", "lra_state_spaces"])
def test_pages_of_papers_without_errors_say_what_stands_for_them(name):
    module = import_module(f"linrnn.reproductions.{name}")
    columns = getattr(module, "PRINTED", None) or {"": module._PRINTED}
    for printed in columns.values():
        assert all(quoted.taken > 0 for quoted in printed.values())
        assert rules.steps(printed)
    source = Path(module.__file__).read_text(encoding="utf-8")
    assert re.search(r"prints? no errors", source)


def test_what_speaks_neither_way_decides_nothing():
    assert Judged("a", "1", (True, True, None)).cells(3)[2:] == [
        "holds with 2 of 3 seeds, neither way with 1", "undecided"]  # fmt: skip
    assert Judged("a", "1", (False, False, None)).cells(3)[-1] == "undecided"
    assert rules.less("a", "", {0: 1.0, 1: 1.0}, {0: 1.0, 1: 2.0}).held == (None, True)
    assert rules.below(inf, inf) is None


def test_a_trend_is_contradicted_by_its_opposite_alone():
    rng = random.Random(0)
    ways = [rules.along([rng.random() for _ in range(4)]) for _ in range(500)]
    # of numbers that are drawn alike each way is one in 24
    assert 0 < ways.count(True) < 60 > ways.count(False) > 0
    assert rules.every([False, True]) is None


def test_rows_are_paired_by_seed():
    printed = {"a": Quoted(60.0, 1.0), "b": Quoted(50.0, 1.0), "c": Quoted(40.0, 1.0)}
    values = {"a": {0: 0.5, 1: 0.6, 2: 0.2}, "b": {0: 0.4, 2: 0.1}, "c": {}}
    (judged,) = ordered(values, printed, where="copy: ")
    said = "60.0 ± 1.0 against 50.0 ± 1.0"
    assert judged == Judged("copy: a is better than b", said, (True, True))
    printed = {"a": Quoted(1.0, 0.1), "b": Quoted(2.0, 0.1)}
    (judged,) = ordered(values, printed, higher_is_better=False)
    assert judged.held == (False, False)


def test_no_order_is_printed_where_seeds_overlap():
    few = {"a": {0: 1.0, 1: 2.0}, "b": {0: 3.0, 1: 4.0}, "c": {0: 2.5, 1: 1.5}}
    values = {name: {n: by_seed[n % 2] for n in range(5)} for name, by_seed in few.items()}
    assert groups(values) == "b > c, a"
    assert groups(values, higher_is_better=False) == "a, c > b"
    assert groups(few) == "b, c, a"  # fewer seeds are no order
    assert groups({}) == ""


@pytest.mark.parametrize("name", reproductions.names())
def test_each_says_how_long_its_runs_are(name):
    what = reproductions.load(name)
    assert set(what.hours) - {"paper"} <= set(what.scales)
    for scale in what.scales:
        assert what.seeds_needed(scale) == (3 if scale in what.hours else 5)
    assert "hours" in vars(reproductions.Reproduction)


def test_every_page_has_its_seeds(pytestconfig):
    """As many as decide anything."""
    command = re.compile(r"`linrnn reproduce (\S+) --scale (\S+) --seeds (\d+)`")
    too_few = set()
    for page in (pytestconfig.rootpath / "results").glob("*/report.md"):
        name, scale, seeds = command.search(page.read_text(encoding="utf-8")).groups()
        if int(seeds) < reproductions.load(name.replace("-", "_")).seeds_needed(scale):
            too_few.add(page.parent.name)
    assert too_few == set()


def test_what_is_not_confirmed_is_looked_into(pytestconfig):
    """Every page with a claim that is contradicted or undecided has a lead."""
    text = (pytestconfig.rootpath / "docs" / "reproductions.md").read_text(encoding="utf-8")
    leads = text.partition("## Leads")[2].partition("\n## ")[0]
    entries = " ".join(re.findall(r"^- (.*?):", leads, flags=re.MULTILINE))
    open_ = set()
    for table in (pytestconfig.rootpath / "results").glob("*/verdicts.csv"):
        if re.search(r"(contradicted|undecided\b.*)$", table.read_text("utf-8"), re.MULTILINE):
            open_.add(table.parent.name.rpartition("-")[0])
    assert len(open_) > 10
    assert {name for name in open_ if f"`{name}`" not in entries} == set()


class Page(lru_proposition_3.LRUProposition3):
    """A page whose claims are given."""


def written(tmp_path, seeds, **found):
    tmp_path.mkdir(exist_ok=True)
    setting = Setting(scale="cpu", seeds=seeds, out=tmp_path)
    findings = Findings(comparable="nothing", **{"tables": (), **found})
    files = write_report("page", Page, setting, findings, 1.0)
    return files, files[0].read_text()


def test_a_page_ends_with_its_claims_and_the_rule(tmp_path):
    judged = (Judged("a, b", "1", (True,) * 5), Judged("c", "2", (True, False) * 2 + (True,)))
    files, page = written(tmp_path, (0, 1, 2, 3, 4), verdicts=judged, notes=("a note",))
    assert page.index("- a note") < page.index("## Verdicts") < page.index("The rule of verdicts")
    assert "| a, b | 1 | holds with 5 of 5 seeds | confirmed |" in page
    assert "| c | 2 | holds with 3 of 5 seeds | undecided |" in page
    assert "fewer than 5 seeds nothing is decided" in page
    table = next(file for file in files if file.name == "verdicts.csv")
    assert table.read_text().splitlines() == [
        "claim,published,ours,verdict",
        '"a, b",1,holds with 5 of 5 seeds,confirmed',
        "c,2,holds with 3 of 5 seeds,undecided",
    ]


def test_tables_of_an_older_page_do_not_stay_beside_a_new_one(tmp_path):
    table = Table("A", ["x", "y"], [["1", "2"]])
    claims = (Judged("c", "2", (True,)),)
    place = tmp_path / "results"
    files, _ = written(tmp_path / "out", (0,), tables=(table, table), verdicts=claims)
    publish(files, place)
    (place / "notes.csv").write_text("mine")
    files, _ = written(tmp_path / "out", (0,), tables=(table,))
    publish(files, place)
    assert {path.name for path in place.glob("*.csv")} == {"table-1.csv", "notes.csv"}
    assert {path.name for path in (tmp_path / "out").glob("*.csv")} == {"table-1.csv"}


def test_paths_of_a_page_begin_at_its_folder(tmp_path, monkeypatch):
    """What fails names its folder, with which the command that goes on works there as well."""
    run = tmp_path / "page" / "runs" / "task" / "a-seed0"
    page = written(tmp_path / "page", (0,), notes=(f"failed: train --resume {run}",))[1]
    assert "failed: train --resume runs/task/a-seed0\n" in page
    monkeypatch.chdir(tmp_path)
    page = written(Path("page"), (0,), notes=("failed: page/runs/x", f"and {run}"))[1]
    assert "failed: runs/x\n- and runs/task/a-seed0\n" in page


def test_no_page_names_a_place_of_the_machine_it_was_computed_on(pytestconfig):
    place = re.compile(r"(?<![\w.)/:])/(?:tmp|home|root|work|Users|mnt|var)/\S+")
    root = pytestconfig.rootpath
    pages = [*(root / "results").rglob("*.*"), *(root / "benchmarks" / "results").glob("*.*")]
    assert len(pages) > 100
    for page in pages:
        if page.suffix in (".md", ".csv", ".json", ".svg"):
            assert not place.findall(page.read_text(encoding="utf-8")), page


def test_a_page_without_a_claim_says_so(tmp_path):
    page = written(tmp_path, (0,))[1]
    assert "No claim" in page.partition("## Verdicts")[2].partition("The rule")[0]


def test_claims_of_windows_are_of_the_seeds_that_both_have():
    losses = {
        128: {"GAU": {0: 1.0, 1: 1.0}, "SA": {0: 2.0, 1: 0.5}, "LRU": {0: 3.0}},
        512: {"GAU": {0: 0.9, 1: 1.1}, "LRU": {0: 3.1}},
    }
    found = {judged.claim: judged.held for judged in su_comparison.judged(losses)}
    assert found["length 128: GAU is better than SA"] == (True, False)
    assert found["length 512: GAU is better than SA"] == ()
    assert found["GAU is better at length 512 than at 128"] == (True, False)
    assert found["LRU is worse at length 512 than at 128"] == (True,)


def test_a_kept_state_is_held_against_a_cleared_one():
    from linrnn.train import PositionLoss

    def curve(loss):
        one = PositionLoss(first=1, last=2, loss=loss, standard_error=0.1, windows=2)
        return [one, replace(one, first=3, last=4)]

    curves = {
        ("lru, kept", True): {0: curve(1.0), 1: curve(2.0)},
        ("lru, cleared", False): {0: curve(1.5), 1: curve(1.5)},
    }
    (judged,) = carried_state.judged(16, curves, ["lru"])
    assert judged.held == (True, False)


def test_measured_sizes_are_claims(tmp_path, monkeypatch):
    monkeypatch.setattr(lru_proposition_3, "RINGS", ((0.0, 0.9),))
    monkeypatch.setattr(lru_proposition_3, "THIN", ())
    setting = Setting(scale="cpu", seeds=(0, 1), out=tmp_path)
    found = lru_proposition_3.LRUProposition3().run(setting)
    assert [judged.held for judged in found.verdicts] == [(True, True), (True, True)]
    monkeypatch.setattr(lru_proposition_3, "gain", lambda low, high: 4.0)
    found = lru_proposition_3.LRUProposition3().run(setting)
    assert found.verdicts[0].held == (False, False)


def test_what_a_gpu_set_is_said_beside_its_verdict(pytestconfig):
    """ "Confirmed" is of the claim: a ratio of a GPU is not reproduced where there is none."""
    rows = []
    for table in (pytestconfig.rootpath / "results").glob("*/verdicts.csv"):
        with table.open(newline="", encoding="utf-8") as lines:
            rows += [row["published"] for row in csv.DictReader(lines)]
    said = [cell for cell in rows if "on a GPU" in cell]
    assert len(said) > 20
    assert {cell for cell in said if NOT_HERE not in cell} == set()
