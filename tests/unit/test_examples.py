"""The example scripts run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_drop_in_trains_both_layers():
    pytest.importorskip("sklearn")
    small = ["--layers", "torch.nn.GRU", "lru", "--epochs", "1", "--images", "80"]
    run = subprocess.run(
        [sys.executable, EXAMPLES / "drop_in.py", *small],
        capture_output=True,
        text=True,
        check=True,
    )
    names = re.findall(r"^(\S+(?: \.\.\.\))?) +accuracy +\d+\.\d % ", run.stdout, re.MULTILINE)
    assert names == ["torch.nn.GRU", "linrnn.RNN('lru', ...)"]
