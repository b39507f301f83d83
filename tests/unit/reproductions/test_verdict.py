"""One rule for every page: seeds that are needed, claims seed by seed, orders without overlaps."""

import csv
import math
import re
import statistics
from dataclasses import replace
from importlib import import_module
from math import inf
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from linrnn import reproductions
from linrnn.compare.run_table import Run
from linrnn.reproductions import (
    Findings,
    Setting,
    Table,
    carried_state,
    lru_proposition_3,
    su_comparison,
)
from linrnn.reproductions._page import outcome
from linrnn.reproductions._page import verdict as rules
from linrnn.reproductions._page.quoted import FAILS, Quoted
from linrnn.reproductions._page.report import publish, write_report
from linrnn.reproductions._page.runs import Runs
from linrnn.reproductions._page.student import holm, sign_test
from linrnn.reproductions._page.verdict import Judged, groups, printed_order
from linrnn.reproductions._runs.language import loss_from


def judged(*differences, **fields):
    held = tuple(rules.below(0.0, x) for x in differences)
    return Judged("a claim", "1 against 2", held, differences=differences, **fields)


def word(*claims, need=5):
    return rules.verdicts(claims, need)[0].word


def strength(verdict):
    """A class as a number, against the claim below 0."""
    strengths = {rules.OPPOSITE: -1, rules.SAME: 1, rules.DIRECTION: 2, rules.REPRODUCED: 3}
    return strengths.get(verdict, 0)


numbers = st.lists(st.floats(-10, 10).filter(lambda x: abs(x) > 1e-3), min_size=5, max_size=9)


@settings(deadline=None)
@given(numbers, st.integers(2, 4))
def test_more_seeds_of_the_same_never_weaken_a_class(values, times):
    for within in (math.nan, 2.0):
        once, more = (word(judged(*values * n, within=within)) for n in (1, times))
        assert strength(once) * strength(more) >= 0
        assert abs(strength(more)) >= abs(strength(once))
    held = tuple(x > 0 for x in values)
    once, more = (word(Judged("a", "", held * n)) for n in (1, times))
    assert abs(strength(more)) >= abs(strength(once))


@settings(deadline=None)
@given(numbers)
def test_two_rows_in_each_others_place_turn_a_verdict_around(values):
    (first,), (second,) = (
        rules.verdicts([judged(*(sign * x for x in values))], 5) for sign in (1, -1)
    )
    assert strength(first.word) == -strength(second.word)
    assert (first.mean, first.low) == pytest.approx((-second.mean, -second.high))
    assert first.p == pytest.approx(second.p)


@settings(deadline=None)
@given(numbers, st.sampled_from([rules.EDGE, rules.UNLEARNED, rules.NOT_KEPT]))
def test_what_must_not_decide_decides_nothing(values, why):
    (found,) = rules.verdicts([judged(*values, why_not=why)], 5)
    assert (found.word, found.why) == (rules.NOTHING, why)
    assert word(judged(*values, each="rounds")) == rules.NOTHING
    assert word(judged(*values), need=len(values) + 1) == rules.NOTHING


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_is_monotone_and_never_below_one_test(values):
    found = holm(values)
    pairs = sorted(zip(values, found, strict=True))
    assert [b for _, b in pairs] == sorted(b for _, b in pairs)
    assert all(a <= b <= 1 for a, b in pairs)
    more = holm([*values, 1.0])
    assert all(b <= c for b, c in zip(found, more, strict=False))


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 12, 30])
def test_student_is_that_of_scipy(n):
    values = np.random.default_rng(n).normal(0.3, 1.0, n).tolist()
    expected = stats.ttest_1samp(values, 0.0)
    (found,) = rules.verdicts([judged(*values)], 2)
    assert found.p == pytest.approx(expected.pvalue, abs=1e-9)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))
    held = [x > 0 for x in values]
    expected = stats.binomtest(sum(held), n).pvalue
    assert sign_test(held) == pytest.approx(expected)
    ps = np.random.default_rng(n).random(n).tolist()
    assert max(holm(ps)) <= 1


def test_a_class_needs_the_published_settings_and_number():
    values = (2.0, 2.2, 2.1, 1.9, 2.3)
    assert word(judged(*values)) == rules.SAME
    assert word(judged(*values, scale="", printed=2.1)) == rules.REPRODUCED
    assert word(judged(*values, scale="", printed=3.0)) == rules.DIRECTION
    assert word(judged(*values, scale="")) == rules.DIRECTION  # no number to compare with
    assert word(judged(*values, scale="", within=3.0)) == rules.REPRODUCED
    assert word(judged(*values, within=1.0)) == rules.OPPOSITE
    assert word(judged(-1.0, 1.0, -2.0, 2.0, 0.5)) == rules.UNRESOLVED


def test_five_seeds_that_only_say_yes_resolve_nothing_and_six_do():
    assert word(Judged("a", "1", (True,) * 5)) == rules.UNRESOLVED
    assert word(Judged("a", "1", (True,) * 6)) == rules.SAME
    assert word(Judged("a", "1", (False,) * 6)) == rules.OPPOSITE
    assert word(judged(1.0, 1.0, 1.0, 1.0, 1.0)) == rules.UNRESOLVED  # no spread to judge by
    assert word(Judged("a", "1", ())) == rules.NOTHING


def test_the_best_rate_at_an_end_decides_nothing(made_runs):
    def at(lr, validation):
        values = {"a": dict.fromkeys(range(5), 0.9), "b": dict.fromkeys(range(5), 0.5)}
        return made_runs("x", values, lr=lr, validation=validation).rows

    rows = [*at(1.0, 0.5), *at(2.0, 0.9)]
    part = Runs(tuple(rows)).part("x")
    assert part.claim("a", "b", "", "").why_not == rules.EDGE
    part = Runs((*rows, *at(3.0, 0.1))).part("x")
    assert part.claim("a", "b", "", "").why_not == ""
    assert part.values("a") == dict.fromkeys(range(5), 0.9)
    failed = [replace(run, validation=math.nan, test=math.nan) for run in at(3.0, 0.1)]
    assert Runs((*rows, *failed)).part("x").claim("a", "b", "", "").why_not == ""


@pytest.mark.parametrize("equal", [(1.0, 2.0), (2.0, 3.0)])
def test_of_rates_that_validate_alike_one_inside_is_compared(made_runs, equal):
    def at(lr):
        values = {"a": dict.fromkeys(range(5), lr / 10), "b": dict.fromkeys(range(5), 0.05)}
        return made_runs("x", values, lr=lr, validation=0.9 if lr in equal else 0.5).rows

    part = Runs((*at(1.0), *at(2.0), *at(3.0))).part("x")
    assert part.values("a") == dict.fromkeys(range(5), 0.2)
    assert part.claim("a", "b", "", "").why_not == ""


def test_two_rows_no_better_than_chance_decide_nothing(made_runs):
    values = {"a": {n: 0.11 + n / 100 for n in range(5)}, "b": {n: 0.1 for n in range(5)}}
    assert made_runs("x", values, chance=0.12).part("x").claim("a", "b", "", "").why_not
    assert not made_runs("x", values, chance=0.05).part("x").claim("a", "b", "", "").why_not
    errors = made_runs("x", values, "mse", chance=0.2).part("x").claim("b", "a", "", "")
    assert (errors.why_not, errors.held) == ("", (True,) * 5)


def test_claims_of_ours_are_told_apart():
    told = [Judged("a", text, ()).ours for text in ("ours: 1", "by its making", "1 against 2")]
    assert told == [True, True, False]


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


def test_equal_numbers_are_neither():
    assert rules.less("a", "", {0: 1.0, 1: 1.0}, {0: 1.0, 1: 2.0}).held == (None, True)
    assert rules.below(inf, inf) is None


def test_rows_are_paired_by_seed():
    judged = rules.less("", "", {0: 0.4, 2: 0.1}, {0: 0.5, 1: 0.6, 2: 0.0})
    assert judged.held == (True, False)
    assert judged.differences == pytest.approx((0.1, -0.1))


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


def test_what_is_opposite_is_looked_into(pytestconfig):
    """Every page with a claim that came out the other way has a lead."""
    text = (pytestconfig.rootpath / "docs" / "reproductions.md").read_text(encoding="utf-8")
    leads = text.partition("## Leads")[2].partition("\n## ")[0]
    entries = " ".join(re.findall(r"^- (.*?):", leads, flags=re.MULTILINE))
    found = outcome.pages(pytestconfig.rootpath / "results")
    names = {page.name for page in found for v in page.verdicts if v.word == rules.OPPOSITE}
    assert names
    assert {name for name in names if f"`{name}`" not in entries} == set()


def test_pages_are_what_their_runs_say(pytestconfig):
    """Computed anew from the runs, each finished page is what lies there; see docs/evidence.py."""
    results = pytestconfig.rootpath / "results"
    found = outcome.pages(results)
    kept = {path.stem for path in (results / "runs").glob("*.csv")}
    assert kept == {page.name for page in found if page.runs is not None}
    for page in found:
        files = outcome.derive(page, results)
        for name, content in files.items():
            assert (results / page.page / name).read_bytes() == content, (page.page, name)
        picture = results / page.page / "claims.svg"
        assert picture.is_file() == ("claims.drawn.csv" in files)
        assert (results / page.page / "verdicts.csv").is_file() == bool(page.verdicts)


def test_means_of_pages_are_those_of_their_runs(pytestconfig):
    results, compared = pytestconfig.rootpath / "results", 0
    for page in outcome.pages(results):
        for table in (results / page.page).glob("table-*.csv") if page.runs else ():
            with table.open(newline="", encoding="utf-8") as lines:
                rows = list(csv.DictReader(lines))
            ours = next((head for head in rows[0] if head.startswith("ours (%), mean")), None)
            for row in rows if ours else ():
                parts = {run.part for run in page.runs.rows}
                scores = [page.runs.part(part).values(row["model"]) for part in parts]
                means = {f"{100 * statistics.fmean(s.values()):.1f}" for s in scores if s}
                assert row[ours].partition(" ")[0] in means, (page.page, row)
                compared += 1
    assert compared > 60


class Page(lru_proposition_3.LRUProposition3):
    """A page whose claims are given."""


def written(tmp_path, seeds, **found):
    tmp_path.mkdir(exist_ok=True)
    setting = Setting(scale="cpu", seeds=seeds, out=tmp_path)
    findings = Findings(comparable="nothing", **{"tables": (), **found})
    files = write_report("page", Page, setting, findings, 1.0)
    return files, files[0].read_text()


def test_a_page_begins_with_its_outcome_and_ends_with_its_claims(tmp_path):
    claims = (judged(1.0, 1.1, 0.9, 1.2, 1.0), Judged("c", "ours: 2", (True, False) * 2 + (True,)))
    files, page = written(tmp_path, (0, 1, 2, 3, 4), verdicts=claims, notes=("a note",))
    assert page.index("1 published claim: 1 in the same direction") < page.index("Source: ")
    assert "1 claim of ours: 1 without a resolvable difference" in page
    picture = "![difference of each claim, with its interval](claims.svg)"
    assert page.index(picture) < page.index("Source: ")
    assert page.index("- a note") < page.index("## Verdicts") < page.index("The rule of verdicts")
    assert "fewer than 5 seeds" in page
    table = next(file for file in files if file.name == "verdicts.csv")
    with table.open(newline="") as lines:
        first, second = csv.DictReader(lines)
    assert first["difference [95 %]"] == "+1.04 [+0.90, +1.18]"
    assert (first["claimed by"], first["verdict"]) == ("published", rules.SAME)
    assert second["difference [95 %]"] == "holds with 3 of 5 seeds"
    assert (second["claimed by"], second["verdict"]) == ("ours", rules.UNRESOLVED)


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
    """An error names the folder, so that the command to go on works there as well."""
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


def test_claims_of_windows_are_of_the_seeds_that_both_have(made_runs):
    losses = {
        128: {"GAU": {0: 1.0, 1: 1.0}, "SA": {0: 2.0, 1: 0.5}, "LRU": {0: 3.0}},
        512: {"GAU": {0: 0.9, 1: 1.1}, "LRU": {0: 3.1}},
    }
    made = [made_runs(f"length {n}", rows, measure="test_loss") for n, rows in losses.items()]
    runs = Runs(tuple(run for runs in made for run in runs.rows))
    claims = su_comparison.SuComparison().claims(runs, "cpu")
    found = {judged.claim: judged.held for judged in claims}
    assert found["length 128: GAU is better than SA"] == (True, False)
    assert found["length 512: GAU is better than SA"] == ()
    assert found["GAU is better at length 512 than at 128"] == (True, False)
    assert found["LRU is worse at length 512 than at 128"] == (True,)


def test_a_kept_state_is_held_against_a_cleared_one():
    rows = [
        Run(scale="cpu", part="chunks-of-16", row=f"lru__{arm}", seed=seed, measures={name: loss})
        for arm, name, losses in (
            ("kept", loss_from(1, True), (1.0, 2.0)),
            ("cleared", loss_from(1, False), (1.5, 1.5)),
        )
        for seed, loss in enumerate(losses)
    ]
    page = carried_state.CarriedState(mixers=["lru"], chunks=[16])
    (judged,) = page.claims(Runs(tuple(rows)), "cpu")
    assert judged.held == (True, False)
    assert judged.differences == (0.5, -0.5)


def test_a_claim_that_cannot_be_decided_makes_no_other_harder():
    clear = judged(1.0, 1.1, 0.9, 1.05, 0.95)
    alone = rules.verdicts([clear], 5)[0]
    beside = rules.verdicts(
        [
            clear,
            judged(1.0, 2.0, 3.0, 1.0, 2.0, each="rounds"),
            judged(1.0, -2.0, 3.0, 1.0, -2.0, why_not=rules.EDGE),
            judged(1.0, 2.0),
        ],
        5,
    )
    assert beside[0] == alone
    assert [v.word for v in beside[1:]] == [rules.NOTHING] * 3
    assert all(math.isnan(v.p) for v in beside[1:])
    tested = rules.verdicts([clear, judged(1.0, -2.0, 3.0, 1.0, -2.0)], 5)
    assert tested[0].p == pytest.approx(2 * alone.p)


def test_measured_sizes_are_claims(tmp_path, monkeypatch):
    monkeypatch.setattr(lru_proposition_3, "RINGS", ((0.0, 0.9),))
    monkeypatch.setattr(lru_proposition_3, "THIN", ())
    setting = Setting(scale="cpu", seeds=(0, 1), out=tmp_path)
    found = lru_proposition_3.LRUProposition3().run(setting)
    assert [judged.held for judged in found.verdicts] == [(True, True), (True, True)]
    assert {v.word for v in rules.verdicts(found.verdicts, 2)} <= {
        rules.REPRODUCED, rules.UNRESOLVED}  # fmt: skip
    monkeypatch.setattr(lru_proposition_3, "gain", lambda low, high: 4.0)
    found = lru_proposition_3.LRUProposition3().run(setting)
    assert found.verdicts[0].held == (False, False)
