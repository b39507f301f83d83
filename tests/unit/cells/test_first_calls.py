"""A first call reads, derives and assembles a cell; how many calls of Python functions it takes."""

import subprocess
import sys

import pytest

#: For each mixer the most calls without a gradient, and with one.
MOST = {"sru": (225, 425), "gru": (300, 535), "rg_lru": (310, 600)}
PROGRAM = """
import sys
import torch
from linrnn.mixers import load

def first(name, gradient):
    layer, x = load(name)(16), torch.randn(2, 8, 16, requires_grad=gradient)
    def call():
        with torch.set_grad_enabled(gradient):
            y, _ = layer(x)
        if gradient:
            y.sum().backward()
    return call

name, gradient = sys.argv[1], sys.argv[2] == "True"
for _ in range(2):
    for other in ("ind_rnn", "mamba"):  # what a process does once does not count
        first(other, gradient)()
call, events = first(name, gradient), []
sys.setprofile(lambda frame, event, argument: events.append(event))
call()
sys.setprofile(None)
print(events.count("call"))
"""


@pytest.mark.unchecked  # a checker of shapes calls functions as well
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("name", MOST)
def test_a_first_call_takes_few_calls(name, gradient):
    command = [sys.executable, "-c", PROGRAM, name, str(gradient)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert 100 < int(output) <= MOST[name][gradient]
