"""The site: every public name is on a page, and what is generated follows its declarations."""

import ast
import csv
import importlib
import inspect
import pkgutil
import posixpath
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from linrnn import mixers
from linrnn.testing import MIXER_PROPERTIES

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "linrnn"
DIRECTIVE = re.compile(r"^::: (\S+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def described(hooks):
    """Everything that a page of the site describes by its docstring."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md")]
    texts = [hooks.on_page_markdown(text) for text in texts] + [*hooks.mixer.pages().values()]
    return [found(path) for path in sorted({*DIRECTIVE.findall("\n".join(texts))})]


def public_modules():
    """Modules a user may name: those of the package, of its folders, and of `interop`."""
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        names = [part for part in parts if part != "__init__"]
        inside = len(parts) == 1 or parts[1:] == ("__init__",) or parts[0] == "interop"
        if inside and parts[0] != "cli" and not any(name.startswith("_") for name in names):
            yield ".".join(["linrnn", *names]), path


def public_names(body):
    """Names that a module defines, and those it hands on: ``from a import b as b``."""
    for node in body:
        if isinstance(node, ast.If):  # TYPE_CHECKING: what is imported when it is first used
            yield from public_names(node.body)
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names if alias.asname == alias.name)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name[0] != "_":
            yield node.name


def found(path):
    """The module, or what a module holds, that a directive names."""
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize(
    ("module", "path"), [*public_modules()], ids=lambda value: str(value)[-30:]
)
def test_every_public_name_is_on_a_page(module, path, described):
    held = importlib.import_module(module)
    things = {n: getattr(held, n) for n in public_names(ast.parse(path.read_text("utf-8")).body)}
    missing = [
        name
        for name, thing in things.items()
        if name not in getattr(held, "_SHARED", ())
        and not (inspect.ismodule(thing) or held in described or thing in described)
        and sys.modules.get(getattr(thing, "__module__", "")) not in described
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("module", "path"), [*public_modules()], ids=lambda value: str(value)[-30:]
)
def test_a_public_module_lists_its_names(module, path):
    held = importlib.import_module(module)
    names = set(public_names(ast.parse(path.read_text("utf-8")).body))
    listed = set(held.__all__)
    assert names - set(getattr(held, "_SHARED", ())) <= listed
    assert all(hasattr(held, name) for name in listed)


def by_kind(name):
    """Constants, then classes, then functions and modules, each by the alphabet, as ruff sorts."""
    return (0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2, name)


WITH_COMMANDS = [*(module for module, _ in public_modules()), "linrnn.cli"]


@pytest.mark.parametrize("module", WITH_COMMANDS)
def test_completion_of_a_module_shows_its_names_and_nothing_imported(module):
    held = importlib.import_module(module)
    assert [*held.__all__] in (sorted(held.__all__), sorted(held.__all__, key=by_kind))
    shown = dir(held)
    assert {*held.__all__} <= {*shown}
    below = {entry.name for entry in pkgutil.iter_modules(getattr(held, "__path__", ()))}
    things = {name: getattr(held, name) for name in shown if name not in below - {*held.__all__}}
    libraries = [
        name
        for name, thing in things.items()
        if inspect.ismodule(thing) and thing.__name__.partition(".")[0] != "linrnn"
    ]
    assert libraries == []
    assert [name for name in shown if name[0] == "_" and name != "__version__"] == []


def test_completion_shows_the_class_of_every_mixer_and_imports_none(python):
    code = "import sys, linrnn.mixers; result = [dir(linrnn.mixers), [*sys.modules]]"
    shown, imported = python(code)
    own = [mixers.load(name) for name in mixers.names()]
    assert {c.__name__ for c in own if c.__module__.startswith("linrnn.")} <= {*shown}
    assert "linrnn.mixers.lru" not in imported


def test_public_names_are_found():
    assert {"linrnn", "linrnn.train", "linrnn.nn", "linrnn.state"} <= {
        m for m, _ in public_modules()
    }
    tree = ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8"))
    assert {"SequenceModel", "load", "train"} <= {*public_names(tree.body)}


def test_every_folder_of_results_is_a_page_with_its_figures(hooks):
    pages, files = hooks.results.pages(), hooks.results.files()
    for folder in (ROOT / "results").iterdir():
        if folder.is_dir():
            (page,) = (uri for uri in pages if uri.startswith(f"results/{folder.name}/"))
            shown = re.findall(r"\]\(([^)#:]+\.(?:svg|csv|png|wav))\)", pages[page])
            places = {posixpath.normpath(f"results/{folder.name}/{name}") for name in shown}
            assert places <= {*files, *pages}
            assert f"]({folder.name}/" in pages["results/README.md"]
            listed = [uri for entry in hooks.results.navigation() for uri in entry.values()]
            assert page in listed


@pytest.fixture
def kept(hooks, tmp_path, monkeypatch):
    """The page of a folder of results with these tables, and every file it offers."""
    monkeypatch.setattr(hooks.results, "FOLDER", tmp_path)
    (tmp_path / "README.md").write_text("# Results\n")
    folder = tmp_path / "a-cpu"
    folder.mkdir()
    (folder / "report.md").write_text("# a: a page\n")

    def page(**tables):
        for name, text in tables.items():
            (folder / f"{name}.csv").write_text(text)
        return hooks.results.pages()["results/a-cpu/report.md"], set(hooks.results.files())

    return page


@pytest.mark.parametrize("verdict", ["opposite", "no difference resolvable"])
def test_page_that_leaves_a_claim_open_leads_to_what_was_looked_at(verdict, kept):
    head = "claim,verdict\na,reproduced\n"
    assert "reproductions.md" not in kept(verdicts=head)[0]
    assert "](../../reproductions.md#leads)" in kept(verdicts=f"{head}b,{verdict}\n")[0]
    assert "\n## Leads\n" in (ROOT / "docs" / "reproductions.md").read_text(encoding="utf-8")


def test_tables_of_a_page_are_its_data(kept):
    page, files = kept(verdicts="claim,verdict\na,reproduced\n")
    assert "As data: [verdicts.csv](verdicts.csv) (the claims)." in page
    assert "results/a-cpu/verdicts.csv" in files


def test_the_overview_has_every_claim_and_every_page(hooks):
    """In the class that the page itself has."""
    made = hooks.reproduced
    tables = made.claims() + made.ours()
    shown = {page.page for page in made.found()}
    assert shown == {path.parent.name for path in (ROOT / "results").glob("*/report.md")}
    for page in made.found():
        where = made.grid() if page.verdicts else made.lost()
        assert f"results/{page.page}/report.md" in where or page.runs is not None
        assert all(v.judged.claim in tables for v in page.verdicts)
        path = ROOT / "results" / page.page / "verdicts.csv"
        words = [line for line in made.claims().splitlines() if f"[{page.page}]" in line]
        words += [line for line in made.ours().splitlines() if f"[{page.page}]" in line]
        rows = list(csv.DictReader(path.open(newline="", encoding="utf-8"))) if words else []
        assert len(words) == len(rows) == len(page.verdicts)
        assert all(any(row["verdict"] in word for word in words) for row in rows)
    css = (ROOT / "docs" / "stylesheets" / "extra.css").read_text(encoding="utf-8")
    assert all(f".verdict.{name} " in css for name in made.SHORT.values())


def test_links_of_results_into_the_documentation_hold_on_the_site(hooks):
    for uri, text in hooks.results.pages().items():
        for link in re.findall(r"\]\((\.\./[^)#]+\.md)\)", text):
            place = (Path("/site") / uri).parent.joinpath(link).resolve().relative_to("/site")
            on_disk = ROOT / "docs" / place
            assert on_disk.exists() or place.as_posix() in hooks.results.pages(), (uri, link)


def test_every_mixer_has_its_costs(hooks):
    assert set(hooks.mixer.measures.costs()) == set(mixers.names())


def test_laws_that_were_measured_are_whole_and_kept(hooks):
    found = hooks.mixer.measures.laws()
    assert found.keys() <= set(mixers.names())
    for name, rows in found.items():
        assert list(rows) == list(MIXER_PROPERTIES), name
        assert {row["verdict"] for row in rows.values()} <= {"pass", "declared"}, name


@pytest.mark.parametrize("name", mixers.names())
def test_a_page_says_when_to_use_a_mixer_what_it_costs_and_where_it_fails(name, hooks):
    section = hooks.mixer.advice.section(name)
    assert section.count("\n- ") >= 1 + ("constant_memory" in mixers.load(name).declared)
    assert "training takes" in section
    assert "**Tune first:** the learning rate" in section
    assert all(reason in section for reason in mixers.load(name).declared.values())


def test_a_page_says_what_the_atlas_measured_and_where_the_mixer_failed(hooks, monkeypatch):
    advice = hooks.mixer.advice
    assert "copying (more than 512 silent steps)" in advice.section("gru")
    figures = advice.atlas.figures(advice.atlas.measured())
    below = next(
        (name, ability)
        for name, row in figures.items()
        for ability, figure in row.items()
        if figure.middle.side == "below"
    )
    assert f"Failed: {below[1].replace('-', ' ')}" in advice.section(below[0])
    monkeypatch.setattr(advice, "_figures", dict)
    assert "**Measured**" not in advice.section("gru")


ADDRESS = "https://example.org/owner/linrnn"


def test_every_page_links_to_a_file_of_the_repository(hooks):
    repository = hooks.repository
    uris = [p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")]
    tutorials = [f"tutorials/{p.stem}.md" for p in (ROOT / "docs" / "tutorials").glob("*.py")]
    uris += [
        *tutorials,
        *hooks.mixer.pages(),
        *hooks.results.pages(),
        "references.md",
        "gallery.md",
    ]
    assert len(uris) > 250
    for uri in uris:
        place, _, path = repository.edit_url(ADDRESS, uri).partition(repository.EDIT)
        assert place == f"{ADDRESS}/"
        assert (ROOT / path).is_file(), uri


def test_an_address_switches_on_links_and_versions(hooks, monkeypatch):
    from mkdocs.config import load_config

    for address in ("", ADDRESS):
        monkeypatch.setenv(hooks.repository.VARIABLE, address)
        config = load_config(str(ROOT / "mkdocs.yml"))
        assert (config.repo_url or "") == address
        hooks.on_config(config)
        assert ("content.action.edit" in config.theme["features"]) == bool(address)
        assert ("version" in config.extra) == bool(address)
        page = SimpleNamespace(file=SimpleNamespace(src_uri="which-mixer.md"), edit_url=None)
        hooks.on_pre_page(page, config)
        assert page.edit_url == (f"{ADDRESS}/edit/main/docs/which-mixer.md" if address else None)


def test_uses_follow_from_what_a_mixer_declares(hooks):
    sections = {name: hooks.mixer.advice.section(name) for name in ("gru", "lru", "delta_net")}
    assert [name for name in sections if "Counting" in sections[name]] == ["gru"]
    assert [name for name in sections if "Smooth signals" in sections[name]] == ["lru"]
    assert [name for name in sections if "Overwriting" in sections[name]] == ["delta_net"]


@pytest.mark.parametrize("name", mixers.names())
def test_page_of_a_mixer_shows_what_was_measured(name, hooks):
    page = hooks.mixer.page(name)
    assert f"{hooks.mixer.measures.parameters(name):,}" in page
    for law, row in hooks.mixer.measures.laws().get(name, {}).items():
        assert f"| `{law}` | {row['verdict']} | {row['worst_error'] or '-'} |" in page


def test_every_system_and_every_score_is_on_the_guide(hooks):
    guide = hooks.on_page_markdown((ROOT / "docs" / "which-mixer.md").read_text(encoding="utf-8"))
    for name in mixers.names():
        assert f"](mixers/{name}.md) | " in guide
    scores = hooks.leaderboard.rows.scores()
    assert len(scores) > 50
    claims = {row.label for row in hooks.leaderboard.rows.measured() if "laim" in row.heading}
    assert claims == set()  # that begin with a mixer's name are no rows of it
    for row in scores:
        assert f"| {row.label} | {hooks.leaderboard.rows.score(row)}" in guide


def configurations():
    """Configurations by which scores were trained, by page and task."""
    from linrnn import recipes, reproductions
    from linrnn.reproductions._runs.selective_copying import column
    from linrnn.reproductions.minrnn_table_1 import with_all_tokens

    def made(name):
        return importlib.import_module(f"{reproductions.__name__}.{name}")

    text, copies = recipes.load("lm").config, column("cpu")
    carried, e2, recall = made("carried_state"), made("lru_appendix_e2"), made("memory_recall")
    dense, su = made("lru_table_1"), made("su_comparison")
    segments = made("segment_recall")
    return {
        "carried-state-cpu": {f"chunks of {n}": carried.base_config(n) for n in (16, 128)},
        "cells-digits-cpu": {"permuted digits": made("cells_digits").config()},
        "cells-gaps-cpu": {"gaps": made("cells_gaps").config()},
        "distillation-cpu": {"tiny Shakespeare": made("distillation").base_config()},
        "lra-state-spaces-cpu": {
            n: found.config for n, found in made("lra_state_spaces").COLUMNS.items()
        },
        "lru-appendix-e2-cpu": {"convolution": e2._config(e2.Size())},
        "lru-table-1-cpu": {found.name: found.config for found in dense._columns("cpu")},
        "lru-table-1-rates": {"ListOps": dense.small("listops", dense.RATES_SIZE).config},
        "mackey-glass-cpu": {"mackey-glass": made("mackey_glass").config()},
        "memory-recall-cpu": {n: recall.config(what) for n, what in recall.QUESTIONS.items()},
        "memory-shakespeare-cpu": {"tiny Shakespeare": text},
        "minrnn-shakespeare-cpu": {"tiny Shakespeare": text},
        "minrnn-table-1-cpu": {"selective copying": with_all_tokens(copies).config},
        "minrnn-table-2-cpu": {"selective copying": copies.config},
        "sashimi-sound-cpu": {"spoken digits": recipes.load("sound").config},
        "segment-recall-cpu": {segments.NAME: segments.config()},
        "segment-shakespeare-cpu": {"tiny Shakespeare": made("segment_shakespeare").config()},
        "su-comparison-cpu": {f"length {n}": su.base_config(n) for n in (128, 512)},
    }


def test_every_cell_of_the_atlas_is_on_its_map(hooks):
    from linrnn import atlas

    cells = atlas.measured()
    heat, curves = hooks.TABLES["atlas heat"](), hooks.TABLES["atlas curves"]()
    assert heat.count("<tr>") == 1 + len({cell.system.name for cell in cells})
    assert heat.count("data-value") == len({(cell.system.name, cell.ability) for cell in cells})
    assert curves.count("<polyline") == len(cells)
    assert f"{len(cells)} cells are there" in hooks.TABLES["atlas about"]()
    laws = hooks.TABLES["atlas laws"]().splitlines()
    assert len({line.count("|") for line in laws}) == 1


def test_lengths_of_scores_are_those_they_are_trained_at(hooks):
    from linrnn.train.model import build_task

    known, rows = configurations(), hooks.leaderboard.rows
    found = {
        page: {task: build_task(config).sequence_length for task, config in tasks.items()}
        for page, tasks in known.items()
    }
    assert found == rows.LENGTHS
    guide = hooks.leaderboard.scores()
    for row in rows.scores():
        assert f"| {row.heading} | {rows.length(row)} | " in guide


MADE = """# made: a page

## Ours

### Who answers

| layer | 1 segment later (%) | floats of state |
| :--- | ---: | ---: |
| attention, window | 45.7 | 1,481 |

### mqar, 2 pairs: test accuracy

| model | ours (%), mean ± s.e. | seeds | parameters | steps | ms per step |
| :--- | ---: | ---: | ---: | ---: | ---: |
| attention, window | 28.9 ± 0.2 | 5 | 13,322 | 600 | 36.5 |
| attention | 19.0 ± 0.2 | 5 | 13,322 | 600 | 36.6 |
| gla | 100.0 ± 0.0 | 5 | 14,138 | 600 | 34.6 |

### mqar, 2 pairs: accuracy on validation of seed 0 while tuning

| row | rate 1 (%) | rate 2 (%) | taken |
| :--- | ---: | ---: | ---: |
| gla | 99.0 at 0.003 | 100.0 at 0.01 | 0.01 |

### selective copying: test accuracy

| model | ours (%), mean ± s.e. | seeds | steps |
| :--- | ---: | ---: | ---: |
| gla | 99.1 ± 0.2 | 5 | 600 |

### convolution: test mse

| model | ours, mean ± s.e. | seeds | parameters | steps | ms per step |
| :--- | ---: | ---: | ---: | ---: | ---: |
| linear, learning rate 0.001 | 0.043 ± 0.032 | 5 | 10,201 | 1,000 | 65.9 |
| linear, learning rate 0.003 | 0.004 ± 0.009 | 5 | 10,201 | 1,000 | 60.1 |
| linear, learning rate 0.01 | 0.002 ± 0.002 | 3, 2 failed | 10,201 | 1,000 | 41.7 |
| tanh, learning rate 0.003 | 0.005 ± 0.008 | 5 | 10,201 | 1,000 | 24.4 |
"""


@pytest.fixture
def made(hooks, kept, tmp_path):
    """The leaderboard of that page alone; more may be written below it."""
    rows = hooks.leaderboard.rows

    def of(more=""):
        (tmp_path / "a-cpu" / "report.md").write_text(MADE + more, encoding="utf-8")
        rows.measured.cache_clear()
        return hooks.leaderboard

    yield of
    rows.measured.cache_clear()


def table(markdown):
    """Rows of the last table, by the heads of their columns."""
    split = (line[1:].split("|") for line in markdown.splitlines() if line.startswith("|"))
    head, _, *body = ([cell.strip() for cell in line] for line in split)
    return [dict(zip(head, line, strict=True)) for line in body]


def test_every_score_says_what_was_tuned(hooks):
    rows = hooks.leaderboard.rows
    for row in rows.scores():
        assert row.tuned.startswith(("nothing: ", "rate: best of ", "step, damping: best of 4")), (
            row
        )
    printed = {row.page for row in rows.scores() if row.tuned.startswith("rate: ")}
    printed |= {row.page for row in rows.scores() if "nothing is tuned for" in row.page.read_text()}
    declared = {row.page.parent.name for row in rows.scores() if row.page not in printed}
    assert declared == rows.TUNED.keys()  # what a page prints is read from it


def test_tuning_is_read_from_the_page_that_prints_it(made):
    shown = table(made().scores())
    words = {row["tuned"] for row in shown if row["task"].startswith("mqar")}
    assert words == {"rate: best of 2 on validation"}
    assert {row["tuned"] for row in shown if row["task"].startswith("selective")} == {""}
    shown = table(made("\n- of which the last tenth is validation and test in one.\n").scores())
    words = {row["tuned"] for row in shown if row["task"].startswith("mqar")}
    assert words == {"rate: best of 2 on the test's text"}


def test_of_a_row_for_each_learning_rate_the_best_that_never_failed_is_the_score(made):
    shown = [row for row in table(made().scores()) if row["task"].startswith("convolution")]
    assert [row["row"] for row in shown] == [
        "linear, learning rate 0.003",
        "tanh, learning rate 0.003",
    ]
    assert shown[0]["tuned"] == "rate: best of 3 by this score"


def test_scores_have_what_their_pages_say_of_size_and_state(made):
    columns = ("parameters", "state")
    shown = table(made().scores())
    found = {(r["task"][:4], r["row"]): tuple(r[name] for name in columns) for r in shown}
    assert found["mqar", "attention, window"] == ("13,322", "1,481")
    assert found["mqar", "attention"] == ("13,322", "grows")
    assert found["mqar", "gla"] == ("14,138", "")  # no page says what its state is
    assert found["sele", "gla"] == ("", "")


def test_systems_have_their_best_recall_with_the_task_and_the_variant(made):
    board = made()
    found = {row["system"]: row[board.BEST] for row in table(board.systems())}
    assert found["[GLA](mixers/gla.md)"] == "100.0 ± 0.0: mqar, 2 pairs"
    assert found["[Attention](mixers/attention.md)"] == (
        "28.9 ± 0.2: mqar, 2 pairs (attention, window)"
    )
    assert found["[LinearRNN](mixers/linear_rnn.md)"] == ""  # which learned a convolution


@pytest.mark.parametrize("which", ["systems", "scores"])
def test_every_menu_above_a_table_is_of_one_of_its_columns(which, hooks):
    text = getattr(hooks.leaderboard, which)()
    menus = re.search(r'data-columns="([^"]+)"', text)[1].split(",")
    head = {*table(text)[0]}
    assert {re.sub(r" at (least|most).*", "", menu) for menu in menus} <= head


@pytest.mark.parametrize(
    ("label", "name"),
    [("minGRU, 2 layers", "mingru"), ("coRNN", "co_rnn"), ("decay by channel", "gla")],
)
def test_rows_of_results_are_told_by_what_pages_call_a_mixer(label, name, hooks):
    assert hooks.leaderboard.rows.mixer_of(label) == name
    assert hooks.leaderboard.rows.mixer_of("bank, one ridge for all channels") is None


def test_bibliography_is_printed_without_marks_of_tex(hooks):
    page = hooks.bibliography.page()
    assert not re.search(r"\\|\{(?! #)|\. , ", page)
    assert "François Fleuret" in page
    assert "Atri Rudra, Christopher Ré. *HiPPO" in page
    assert "Kazuki Irie, Imanol Schlag, Róbert Csordás, Jürgen Schmidhuber" in page
    assert "A Recurrent LLM for Fast and Efficient Inference*. 2025." in page


def test_a_reference_lists_the_pages_whose_code_uses_it(hooks):
    def examples(uri):
        return hooks.examples.section((ROOT / "docs" / uri).read_text(encoding="utf-8"), uri)

    assert "[Streaming](../tutorials/streaming.md)" in examples("reference/streaming.md")
    assert "[Your own recurrence](../own-recurrence.md)" in examples("reference/cells.md")
    assert "own-recurrence" not in examples("reference/tokenizers.md")
    assert hooks.examples.section("# Nothing described here", "reference/x.md") == ""


def test_names_of_tests_break_between_words_on_the_page_of_guarantees_alone(hooks):
    page = SimpleNamespace(file=SimpleNamespace(src_uri="guarantees-tests.md"))
    html = "<td>a_b/c</td><td><code>x/test_a.py::b_c</code></td>"
    wanted = "<td>a_b/c</td><td><code>x/<wbr>test_<wbr>a.py<wbr>::b_<wbr>c</code></td>"
    assert hooks.on_page_content(html, page) == wanted
    page.file.src_uri = "layers.md"
    assert hooks.on_page_content(html, page) == html


@pytest.fixture(scope="module")
def navigation(hooks):
    """The entries under each tab: the address of a page, or a list."""
    from mkdocs.config import load_config

    config = hooks.on_config(load_config(str(ROOT / "mkdocs.yml")))
    return {title: inside for entry in config.nav for title, inside in entry.items()}


def addresses(inside):
    """Every page below an entry, in order."""
    if isinstance(inside, str):
        return [inside]
    return [page for entry in inside for below in entry.values() for page in addresses(below)]


def test_kinds_of_pages_stand_apart(navigation):
    kinds = {title: addresses(inside) for title, inside in navigation.items()}
    assert {path.parent.as_posix() for path in map(Path, kinds["Tutorials"])} == {"tutorials"}
    assert kinds["Getting started"] == ["getting-started.md"]
    assert kinds["Results"][1:6] == [
        *("reproduced.md", "reproductions.md", "atlas.md", "atlas-map.md", "gallery.md"),
    ]
    assert all(
        page.startswith("results/") for page in [*kinds["Results"][:1], *kinds["Results"][6:]]
    )
    pages = [page for inside in kinds.values() for page in inside]
    assert len(pages) == len(set(pages))


def test_the_navigation_leads_to_every_page_that_lies_on_disk(navigation):
    found = {page for inside in navigation.values() for page in addresses(inside)}
    docs = ROOT / "docs"
    assert {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")} <= found


def test_the_first_page_says_where_its_commands_are_given():
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert text.index("In a clone of the repository") < text.index("make quickstart")
    assert re.search(r"there, `pip install -c constraints.txt", text)
