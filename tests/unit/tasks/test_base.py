import pytest

from linrnn import tasks
from linrnn.errors import ArgumentError


@pytest.mark.unchecked
def test_at_length_of_a_task_without_one():
    message = (
        "Digits: the task must have an option 'length' .* got length=128. Test it on its own 64"
    )
    with pytest.raises(ArgumentError, match=message):
        tasks.load("digits")().at_length(128)
