"""Memories of polynomials: what must be exact, the verdicts, and a small run."""

import math

import pytest
import torch

from linrnn.reproductions import Setting
from linrnn.reproductions import hippo_memory as memory


@pytest.mark.parametrize(("measure", "bound"), [("legs", 5e-4), ("legt", 1e-5), ("lagt", 0.05)])
def test_what_a_memory_can_hold_it_gives_back(measure, bound):
    """A constant to rounding, and a line as far as its stairs are one.

    LagT weighs what lies 25 units back by exp(-25), and so its stairs by the reverse of that.
    """
    rising = torch.linspace(0, 1, 1200, dtype=torch.float64)
    part, found = memory.reconstruct(measure, torch.stack([torch.ones(1200).double(), rising]), 24)
    assert part.shape == found.shape == (2, 1200 if measure == "legs" else 300)
    constant, line = memory.nrmse(found, part)
    assert constant < 1e-10
    assert line < bound


def test_delay_is_of_so_many_steps():
    slow = torch.sin(torch.arange(900, dtype=torch.float64) / 40)[None]
    found, wanted = memory.delayed(slow, 150, 16)
    assert found.shape == wanted.shape == (1, 750)
    assert torch.equal(wanted, slow[:, :-150])
    assert memory.nrmse(found[:, 200:], wanted[:, 200:])[0] < 1e-3
    off = memory.nrmse(found[:, 200:-1], wanted[:, 201:])[0]
    assert off > 0.02  # a step more or less is seen


def test_a_small_run_has_tables_verdicts_and_pictures(tmp_path):
    what = memory.HippoMemory(1000, (40, 80), (8, 64), (6, 12, 48, 96))
    found = what.run(Setting(scale="cpu", seeds=(0, 3), out=tmp_path))
    past, late = found.tables
    assert [row[0] for row in past.rows] == ["LegS, all", "LegT, window", "LagT, fading"]
    assert [row[0] for row in late.rows] == ["40 steps", "80 steps"]
    assert float(late.rows[1][-1]) < 0.1 < 0.6 < float(late.rows[1][1])
    assert {len(judged.held) for judged in found.verdicts} == {2}
    assert found.verdicts[0].held == (True, True)
    assert what.claims(found.runs, "cpu") == list(found.verdicts)
    assert set(found.figures) == {"signal", "delay"}


@pytest.mark.parametrize(
    ("errors", "held"),
    [
        ([0.8, 0.5, 0.01], True),
        ([0.8, 0.5, 0.2], True),
        ([0.8, 0.9, 0.01], False),
        ([0.8, 0.01, 0.02], True),  # held both times: a floor, and no fall
    ],
)
def test_verdicts_are_of_falling_errors_and_of_those_that_are_held(errors, held):
    late = {(d, n): [e] for d in (10, 20) for n, e in zip((2, 4, 8), errors, strict=True)}
    past = {("legs", 2): [0.3], ("legs", 4): [0.01]}
    judged = memory.judged(past, late)
    assert judged[0].differences == pytest.approx([math.log10(5)])
    assert [judged[2].held, judged[3].held] == [(held,), (errors[-1] < 0.05,)]
    assert judged[-1].held == (True,)
    unlike = {**late, (20, 2): [2 * errors[0]]}
    assert memory.judged(past, unlike)[-1].held == (False,)  # at one order of three
