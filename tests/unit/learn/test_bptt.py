"""Back-propagation with segments computed again, against back-propagation without."""

import itertools
from math import log

import pytest
import torch
from test_tbptt import Kept
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import cross_entropy, mse_loss

from linrnn import SequenceModel, learn
from linrnn.errors import ArgumentError
from linrnn.learn import Batch, Loop
from linrnn.learn._parts import recompute
from linrnn.state import detach, leaves

TIME, ROWS = 13, 3
SEGMENTS = (0, 1, 2, 5, 12, 13, 64)


def make(pool="none", **options):
    torch.manual_seed(0)
    known = {"mixer": "lru", "d_model": 4, "n_layers": 2, "norm": "layer"}
    return SequenceModel(2, 3, **(known | options), pool=pool, dtype=torch.float64)


@pytest.fixture
def batch():
    random = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, TIME, 2, dtype=torch.float64, generator=random)
    target = torch.randn(ROWS, TIME, 3, dtype=torch.float64, generator=random)
    reset = torch.zeros(ROWS, TIME, dtype=torch.bool)
    reset[0, 7] = reset[2, 5] = True
    return Batch(x, target, None, reset)


def found(model, batch, carried=None, loss=mse_loss, **options):
    model.zero_grad(set_to_none=True)
    torch.manual_seed(4)
    learner = learn.build("bptt", options)
    learner.check(model)
    step = learner.step(model, batch, carried, Loop(loss))
    return {n: p.grad for n, p in model.named_parameters()}, step


def close(ours, theirs):
    for name, g in theirs[0].items():
        torch.testing.assert_close(ours[0][name], g, rtol=1e-10, atol=1e-13, msg=name)
    torch.testing.assert_close(ours[1].loss, theirs[1].loss)
    torch.testing.assert_close(ours[1].y, theirs[1].y)
    torch.testing.assert_close(leaves(ours[1].state), leaves(theirs[1].state))


@pytest.mark.parametrize("mixer", ["lru", "lstm", "mamba", "delta_net", "attention", "rg_lru"])
@pytest.mark.parametrize("segment", SEGMENTS)
def test_gradient_is_the_same_whatever_is_computed_again(mixer, segment, batch):
    model = make(mixer=mixer)
    close(found(model, batch, recompute=segment), found(model, batch))


@pytest.mark.parametrize("pool", ["mean", "last"])
@pytest.mark.parametrize("segment", SEGMENTS)
def test_rows_with_one_answer_may_end_in_any_segment(pool, segment, batch):
    model = make(pool)
    rows = Batch(batch.x, torch.tensor([0, 2, 1]), torch.tensor([TIME, 5, 8]), None)
    ours, theirs = (
        found(model, rows, loss=cross_entropy, **o) for o in ({"recompute": segment}, {})
    )
    close(ours, theirs)


def test_a_carried_state_and_a_learned_start_are_there(batch):
    model = make(mixer="gru", mixer_options={"learn_initial": True})
    ours, theirs = found(model, batch, recompute=4), found(model, batch)
    close(ours, theirs)
    assert ours[0]["blocks.0.mixer.h0"].ne(0).any()
    state = detach(theirs[1].state)
    close(found(model, batch, state, recompute=4), found(model, batch, state))


def test_random_numbers_come_again_and_statistics_move_once(batch):
    """In segments as long as those of a loop over windows without anything computed again."""
    model = make(norm="batch", dropout=0.3)
    before = {n: b.clone() for n, b in model.named_buffers()}
    ours, step = found(model, batch, recompute=5)
    moved = {n: b.clone() for n, b in model.named_buffers()}
    model.load_state_dict(before, strict=False)
    model.zero_grad()
    torch.manual_seed(4)
    state, answers = None, []
    for start in (0, 5, 10):
        part = slice(start, start + 5)
        y, state = model(batch.x[:, part], state, reset=batch.reset[:, part])
        answers.append(y)
    mse_loss(torch.cat(answers, 1), batch.target).backward()
    torch.testing.assert_close(step.y, torch.cat(answers, 1))
    for name, p in model.named_parameters():
        torch.testing.assert_close(ours[name], p.grad, rtol=1e-10, atol=1e-13, msg=name)
    for name, buffer in model.named_buffers():
        assert torch.equal(moved[name], buffer)


def test_random_numbers_after_it_are_those_without(batch):
    model = make(dropout=0.3)
    found(model, batch, recompute=TIME)
    after = torch.rand(1)
    found(model, batch)
    assert torch.equal(after, torch.rand(1))


@pytest.mark.parametrize("pool", ["none", "mean"])
def test_activations_of_one_segment_are_all_that_is_kept(pool):
    model = make(pool, d_model=16)

    def needed(time, **options):
        x = torch.randn(2, time, 2, dtype=torch.float64)
        target = torch.zeros((2, time, 3) if pool == "none" else (2, 3), dtype=torch.float64)
        Kept.now = Kept.peak = 0
        with saved_tensors_hooks(Kept, lambda kept: kept.x):
            found(model, Batch(x, target, None, None), **options)
        return Kept.peak

    one = needed(32)
    assert needed(1024) > 25 * one
    answers = 2 * 1024 * 3 * 8 * (pool == "none")  # that a loss keeps
    assert needed(1024, recompute=32) <= 1.1 * one + 2 * answers


class Borders:
    """Which segments' first states are kept."""

    def __init__(self, monkeypatch):
        self.kept, forward = [], recompute.Segments.forward

        def noted(segments):
            y = forward(segments)
            self.kept = sorted(segments.states)
            return y

        monkeypatch.setattr(recompute.Segments, "forward", noted)


@pytest.fixture
def borders(monkeypatch):
    return Borders(monkeypatch)


def decaying(size, dtype=torch.float32):
    """An LRU all of whose eigenvalues have one absolute value, and a batch of 240 steps."""
    model = make(n_layers=1).to(dtype)
    with torch.no_grad():
        for block in model.blocks:
            block.mixer.nu_log.fill_(log(-log(size)))
    random = torch.Generator().manual_seed(1)
    x, target = (torch.randn(2, 240, n, generator=random).to(dtype) for n in (2, 3))
    return model, Batch(x, target, None, None)


@pytest.mark.parametrize("mixer", ["lru", "s5", "slru"])
def test_states_between_segments_can_be_computed_from_later_ones(mixer, borders, batch):
    model = make(mixer=mixer)
    plain = batch._replace(reset=None)
    ours, theirs = found(model, plain, recompute=2, reverse=True), found(model, plain)
    assert len(borders.kept) < 4  # of 7
    for name, g in theirs[0].items():
        torch.testing.assert_close(ours[0][name], g, rtol=1e-6, atol=1e-9, msg=name)
    torch.testing.assert_close(leaves(ours[1].state), leaves(theirs[1].state))


def test_what_is_before_a_reset_is_kept(borders, batch):
    model = make(mixer="s5")
    ours, theirs = found(model, batch, recompute=2, reverse=True), found(model, batch)
    assert borders.kept == [0, 2, 3]  # of steps 0, 4 and 6: resets are at 5 and 7
    for name, g in theirs[0].items():
        torch.testing.assert_close(ours[0][name], g, rtol=1e-6, atol=1e-9, msg=name)


@pytest.mark.parametrize(("size", "most"), [(0.9, 70), (0.95, 144), (0.8, 33)])
def test_a_state_is_kept_after_as_many_steps_as_the_rule_says(size, most, borders):
    """``ln(1e-4 / 6e-8) / -ln|a|`` in float32, as published: 70 steps of 0.9."""
    model, batch = decaying(size)
    found(model, batch, recompute=1, reverse=True)
    gaps = {b - a for a, b in itertools.pairwise(borders.kept)}
    assert gaps == {most + 1}  # the state after them is there, and so many before follow from it
    found(model, batch, recompute=7, reverse=True)
    assert {b - a for a, b in itertools.pairwise(borders.kept)} == {most // 7 + 1}


@pytest.mark.parametrize("size", [0.7, 0.9, 0.99])
def test_the_rule_bounds_what_reversing_costs(size, borders, monkeypatch):
    model, batch = decaying(size)
    exact = found(*decaying(size, torch.float64))[0]

    def error():
        ours = found(model, batch, recompute=4, reverse=True)[0]
        return max(float((ours[n] - g).norm() / g.norm()) for n, g in exact.items())

    assert error() < 1e-4
    monkeypatch.setattr(recompute, "TOLERANCE", 1e30)
    broken = error()
    assert borders.kept == [0]
    assert not broken < 1e-4 or size == 0.99  # where 240 steps are within the rule


@pytest.mark.unchecked
def test_what_it_cannot_do_is_said():
    with pytest.raises(ArgumentError, match="BPTT: recompute must be at least 0, got -1"):
        learn.build("bptt", {"recompute": -1})
    with pytest.raises(ArgumentError, match=r"BPTT: recompute must be a number .* got None"):
        learn.build("bptt", {"reverse": True})
    back = learn.build("bptt", {"recompute": 0, "reverse": True})
    with pytest.raises(
        ArgumentError,
        match=r"mix along time by linear_scan alone, got blocks.0.mixer \(LSTM\). Use recompute",
    ):
        back.check(make(mixer="lstm"))
    with pytest.raises(ArgumentError, match=r"one with other parts. Use pool='none'"):
        back.check(make("mean"))
    both = make(bidirectional=True)
    learn.build("bptt").check(both)
    with pytest.raises(
        ArgumentError,
        match=r"BPTT: every layer must read .* Use the learner bptt without recompute",
    ):
        learn.build("bptt", {"recompute": 4}).check(both)
