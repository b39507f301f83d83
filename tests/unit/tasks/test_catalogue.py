import pytest
from made_data import options

from linrnn import recipes, tasks
from linrnn.errors import UnknownNameError
from linrnn.train.model import build_model

pytestmark = pytest.mark.usefixtures("use_made_data")
each_task = pytest.mark.parametrize("name", tasks.names())


def make(name, root):
    """A task with data that is there."""
    cls = tasks.load(name)
    return cls(cls.Options(**options(name, root)))


@each_task
def test_load_gives_the_one_class_of_the_file(name):
    assert issubclass(tasks.load(name), tasks.Task)
    assert tasks.load(name).__module__ == f"linrnn.tasks.{name}"


@each_task
def test_task_is_made_without_its_data(name, monkeypatch, tmp_path):
    monkeypatch.setenv("LINRNN_DATA", str(tmp_path))
    task = tasks.load(name)()
    assert task.sequence_length >= 1
    assert task.d_input >= 1
    assert task.d_output >= 1


@each_task
def test_task_describes_its_data(name, made_data):
    task = make(name, made_data)
    x, *_ = task.datasets().train[0]
    assert x.shape[0] <= task.sequence_length
    if task.encoder == "linear":
        assert x.shape[1:] == (task.d_input,)
    if task.class_names:
        assert len(task.class_names) == task.d_output
    assert 0 <= task.chance < (1 if task.metric == "accuracy" else float("inf"))
    assert task.summary
    assert task.summary == task.summary.splitlines()[0]


@each_task
def test_recipe_of_a_tasks_name_is_for_the_task(name):
    config = recipes.load(name).config if name in recipes.names() else recipes.untuned(name)
    assert config.task == name


@each_task
def test_every_task_builds_an_untuned_model_and_scores_it(name, made_data):
    config, task = recipes.untuned(name), make(name, made_data)
    x, target, *lengths = task.datasets().validation[0]
    x, target = x[None], target[None]
    y = build_model(config, task).eval()(x, lengths=lengths[0][None] if lengths else None)[0]
    assert task.loss(y, target).ndim == 0
    scores = task.scores(y, target)
    assert scores.shape[:1] == (1,)
    assert scores.ndim == (2 if task.pooled else 1)
    assert task.contributions(scores.double()).shape == (1,)
    assert task.decodes == (type(task).decoded_scores is not tasks.Task.decoded_scores)
    assert task.pooled or 0 <= scores.item() < float("inf")


@pytest.mark.unchecked
def test_load_unknown_task():
    with pytest.raises(UnknownNameError, match=r"no task named 'digit'. Did you mean 'digits'"):
        tasks.load("digit")
