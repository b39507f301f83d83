"""linrnn show."""

import inspect

import pytest

from linrnn import learn, mixers, recipes, tasks
from linrnn.cli import show as verb
from linrnn.cli._line.names import known_as
from linrnn.errors import UnknownNameError


def show(capsys, name):
    assert verb.main([name]) == 0
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def shown():
    """Pages by name: that of a task is that of its recipe, and baselines on it are computed."""
    return {}


def show_once(shown, capsys, name):
    if name not in shown:
        shown[name] = show(capsys, name)
    return shown[name]


@pytest.mark.parametrize("name", mixers.names())
def test_show_prints_the_docstring_and_every_option_of_a_mixer(capsys, name):
    out, cls = show(capsys, name), mixers.load(name)
    assert out.startswith(f"mixer {name}: linrnn.mixers.{name}.{cls.__name__}\n===")
    assert inspect.getdoc(cls) in out
    table = out[out.index("\noption ") :].splitlines()[2:]
    for line, parameter in zip(table, inspect.signature(cls).parameters.values(), strict=False):
        assert line.split()[0] == parameter.name


def test_show_prints_types_and_defaults(capsys):
    rows = [" ".join(line.split()) for line in show(capsys, "lru").splitlines()]
    assert "d_model int (required)" in rows
    assert "d_state int | None None" in rows
    assert "r_max float 1.0" in rows
    assert any(row.startswith("form Literal['scan', ") for row in rows)
    assert "Family: diagonal" in rows


def test_show_prints_the_laws_a_mixer_does_not_keep(capsys, monkeypatch):
    declared = {"causal": "it looks ahead", "edges:conv": "it trips"}
    monkeypatch.setattr(mixers.LRU, "declared", declared)
    page = show(capsys, "lru")
    assert "Lacks the property 'causal': it looks ahead" in page
    assert "Lacks the property 'edges' with form='conv': it trips" in page


@pytest.mark.parametrize("name", learn.names())
def test_show_prints_the_docstring_and_every_option_of_a_learner(capsys, name):
    out, cls = show(capsys, name), learn.load(name)
    assert out.startswith(f"learner {name}: linrnn.learn.{name}.{cls.__name__}\n===")
    assert inspect.getdoc(cls) in out
    for parameter in inspect.signature(cls).parameters.values():
        assert f"\n{parameter.name} " in out


@pytest.mark.parametrize("name", tasks.names())
def test_show_prints_the_numbers_of_a_task(capsys, shown, name):
    out, task = show_once(shown, capsys, name), tasks.load(name)()
    assert f"task {name}: linrnn.tasks.{name}." in out
    assert f"Chance level: {task.chance:g}" in out
    assert f"Sequence length: {task.sequence_length} steps" in out
    for published in task.published:
        assert published.source in out


@pytest.mark.parametrize("name", recipes.names())
def test_show_prints_the_whole_configuration_of_a_recipe(capsys, shown, name):
    out = show_once(shown, capsys, name)
    for scale in recipes.scales(name):
        recipe = recipes.load(name, scale)
        title = f'recipe {name}: linrnn.recipes.load("{name}", "{scale}")'
        assert title in out
        page = out[out.index(title) :]
        rows = [" ".join(line.split()) for line in page.splitlines()]
        assert f"optim.lr float {recipe.config.optim.lr!r}" in rows
        assert f"train.epochs int {recipe.config.train.epochs}" in rows
        for option, value in recipe.config.mixer_options.items():
            assert f"mixer.{option} {type(value).__name__} {value!r}" in rows
        assert f"Shows: {recipe.shows}" in rows
        assert f"Source: {recipe.source}" in rows


def test_show_says_what_differs_from_the_source_of_a_recipe(capsys):
    out = show(capsys, "listops_s5")
    assert "Expected: 0.6215 as published; not run here\n" in out
    assert "Time: not known; needs a GPU\n" in out
    assert "Departures: The public code reads backward" in out
    assert "Departures" not in show(capsys, "digits")


def test_show_prints_everything_of_a_name(capsys):
    out = show(capsys, "digits")
    assert out.index("task digits: ") < out.index("recipe digits: ")


@pytest.mark.unchecked
def test_every_name_is_known_however_it_is_spelt():
    known = verb._known()  # with some names in two catalogues
    assert len({*known}) < len(known)
    for name in known:
        for spelt in (name.replace("_", "-"), name.upper(), name.upper().replace("_", "-")):
            assert known_as("entry", spelt, known) == name


def test_unknown_name_is_a_wrong_command():
    message = (
        r"no mixer, task, learner, recipe or reproduction named 'lur'\. Did you mean 'lru'\? "
        r"`linrnn list` prints all \d+\."
    )
    with pytest.raises(UnknownNameError, match=message) as error:
        verb.main(["lur"])
    assert error.value.exit_code == 2


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("kind", "known", "said"),
    [
        ("column", "ab", r"no column named 'z'\. Known: a, b\.$"),
        ("column", [f"c{i:02}" for i in range(50)], r"Known: c00, .*, c39 and 10 more\.$"),
        ("mixer", [f"m{i}" for i in range(50)], r"`linrnn list mixers` prints all 50\.$"),
    ],
)
def test_an_unknown_name_is_answered_in_a_line(kind, known, said):
    with pytest.raises(UnknownNameError, match=said):
        raise UnknownNameError(kind, "z", known)
