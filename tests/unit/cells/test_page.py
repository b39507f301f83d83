"""The page "Your own recurrence" says what is so."""

import re

import pytest
import torch

from linrnn.cells import Cell
from linrnn.errors import ArgumentError


@pytest.mark.unchecked
def test_the_examples_of_the_page_run(root, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (root / "docs" / "own-recurrence.md").read_text(encoding="utf-8")
    space = {}
    torch.manual_seed(0)
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    for block in blocks:
        exec(compile(block, "own-recurrence.md", "exec"), space)
    assert len(blocks) == 6
    assert isinstance(space["cornn"], Cell)
    assert all(x.grad is not None for x in space["model"].parameters())
    assert (tmp_path / "cornn.onnx").stat().st_size
    assert re.match(r"(native|scan): ", capsys.readouterr().out)
    made = [x for x in space.values() if isinstance(x, torch.Tensor)]
    assert made
    assert all(x.isfinite().all() for x in made)


@pytest.mark.unchecked
def test_the_refusal_on_the_page_is_the_one_that_comes(root):
    page = (root / "docs" / "own-recurrence.md").read_text(encoding="utf-8")

    def leaky(h, x):
        if h > 0:
            h = h + x
        return h, h

    with pytest.raises(ArgumentError) as error:
        Cell(leaky, state="h")
    shown = str(error.value).replace("test_page.py", "my_layers.py")
    assert re.sub(r":\d+ ", ":12 ", shown) in " ".join(page.split())
