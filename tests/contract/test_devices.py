"""The laws that compare another device with the CPU, on the device that every machine has."""

import pytest
import torch

from linrnn import mixers
from linrnn.testing import BrokenPropertyError
from linrnn.testing._devices import same_numbers_on, there
from linrnn.testing._every_op import matches_its_steps


@pytest.mark.parametrize("name", ["lru", "gla", "s4d", "lstm"])
def test_a_layer_agrees_with_its_copy(name):
    same_numbers_on("cpu", mixers.load(name))


class Left(mixers.LRU):
    """Forgets to take a part along: another device would have other numbers of it."""

    def _apply(self, fn, recurse=True):
        moved = super()._apply(fn, recurse)
        with torch.no_grad():
            self.D.add_(1e-3)
        return moved


def test_a_layer_that_changes_on_its_way_is_caught():
    with pytest.raises(BrokenPropertyError, match=r"cpu torch\.float64 scan at once: y"):
        same_numbers_on("cpu", Left)


def test_tensors_go_there_and_results_come_back():
    seen = []

    def run(x, *, options):
        seen.append((x.device.type, options["more"].device.type, options["less"]))
        return {"y": torch.ones(2)}

    given = {"more": torch.zeros(2), "less": 3}
    assert there("meta", run)(torch.zeros(1), options=given)["y"].device.type == "cpu"
    assert seen == [("meta", "meta", 3)]


def test_an_op_is_compared_where_it_is_told_to_run():
    matches_its_steps("linear_scan", "tree", "cpu")
    with pytest.raises(NotImplementedError, match="meta"):
        matches_its_steps("linear_scan", "tree", "meta")
