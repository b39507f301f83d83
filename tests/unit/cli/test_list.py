"""linrnn list."""

import inspect

import pytest

from linrnn import learn, mixers, recipes, reproductions, tasks
from linrnn.cli import list as verb
from linrnn.cli._line.entries import summaries
from linrnn.errors import UnknownNameError

CATALOGUES = {
    "mixers": mixers,
    "tasks": tasks,
    "learners": learn,
    "recipes": recipes,
    "reproductions": reproductions,
}


@pytest.mark.parametrize("kind", CATALOGUES)
def test_list_prints_each_name_with_its_summary(capsys, kind):
    assert verb.main([kind]) == 0
    lines = capsys.readouterr().out.splitlines()
    if kind == "mixers":  # under headings
        lines = sorted(line for line in lines if line.startswith("  "))
    assert list(dict.fromkeys(line.split()[0] for line in lines)) == CATALOGUES[kind].names()
    for line in lines:
        assert len(line.split()) > 3, f"no summary: {line}"


def test_mixers_stand_under_the_words_for_their_family(capsys):
    verb.main(["mixers"])
    found, heading = {}, ""
    for line in capsys.readouterr().out.splitlines():
        if line.startswith("  "):
            found[line.split()[0]] = heading
        else:
            heading = line
    words = {name: mixers.load(name).family for name in mixers.names()}
    assert found == {name: mixers.FAMILIES[family] for name, family in words.items()}
    assert list(dict.fromkeys(found.values())) == [
        text for family, text in mixers.FAMILIES.items() if family in words.values()
    ]


@pytest.mark.parametrize("kind", [kind for kind in CATALOGUES if kind != "recipes"])
def test_summary_is_what_the_class_states_or_the_first_line_of_its_docstring(kind):
    """Lists read the source, and find a class whatever it derives from."""
    for name, found in summaries(kind).items():
        cls = CATALOGUES[kind].load(name)
        stated = getattr(cls, "summary", None) or inspect.getdoc(cls).split("\n")[0]
        assert found == stated, name


def test_list_prints_each_scale_of_a_recipe_with_metric_and_time(capsys):
    verb.main(["recipes"])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    scales = [(name, scale) for name in recipes.names() for scale in recipes.scales(name)]
    assert [tuple(line.split()[:2]) for line in lines] == scales
    assert "digits cpu accuracy 97.50 % 45 s two LRU layers" in "\n".join(lines)
    paper = next(line for line in lines if line.startswith("listops paper"))
    assert paper.startswith("listops paper accuracy 60.20 % 11 h on one A100 GPU six LRU layers")
    assert paper.endswith("not run here")
    assert any("needs a GPU" in line for line in lines if line.startswith("listops_s5"))


def test_list_without_a_kind_prints_all(capsys):
    assert verb.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith("  ")] == list(CATALOGUES)
    assert any(line.split()[:1] == ["lru"] for line in lines)


@pytest.mark.unchecked
def test_misspelt_kind_is_a_wrong_command():
    with pytest.raises(
        UnknownNameError, match=r"no catalogue named 'mixer'\. Did you mean 'mixers'\?"
    ) as e:
        verb.main(["mixer"])
    assert e.value.exit_code == 2
