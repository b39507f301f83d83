import pytest

from linrnn import recipes, tasks
from linrnn.errors import UnknownNameError

each_task = pytest.mark.parametrize("name", tasks.names())


@each_task
def test_load_gives_the_one_class_of_the_file(name):
    assert issubclass(tasks.load(name), tasks.Task)
    assert tasks.load(name).__module__ == f"linrnn.tasks.{name}"


@each_task
def test_task_describes_its_data(name):
    task = tasks.load(name)()
    x, _ = task.datasets().train[0]
    assert x.shape[0] <= task.sequence_length
    if task.encoder == "linear":
        assert x.shape[1:] == (task.d_input,)
    if task.class_names:
        assert len(task.class_names) == task.d_output
    assert 0 <= task.chance < 1
    assert task.summary
    assert task.summary == task.summary.splitlines()[0]


@each_task
def test_task_has_a_recipe_of_its_name(name):
    assert recipes.load(name).config.task == name


@pytest.mark.unchecked
def test_load_unknown_task():
    with pytest.raises(UnknownNameError, match=r"no task named 'digit'. Did you mean 'digits'"):
        tasks.load("digit")
