"""Truncated back-propagation against loops written out by hand, in float64."""

import copy

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from linrnn import SequenceModel, learn
from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.learn import Batch, Loop
from linrnn.state import detach
from linrnn.tasks._kinds.base import IGNORE

TIME, ROWS = 13, 3


def make(pool="none", **options):
    torch.manual_seed(0)
    known = {"mixer": "mingru", "d_model": 4, "n_layers": 2, "norm": "layer"}
    return SequenceModel(2, 3, **(known | options), pool=pool, dtype=torch.float64)


@pytest.fixture
def batch():
    random = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, TIME, 2, dtype=torch.float64, generator=random)
    target = torch.randint(3, (ROWS, TIME), generator=random)
    target[:, 4:6] = IGNORE
    target[1, 8:] = IGNORE
    reset = torch.zeros(ROWS, TIME, dtype=torch.bool)
    reset[0, 7] = reset[2, 5] = True
    return Batch(x, target, None, reset)


def nats(y, target):
    return torch.nn.functional.cross_entropy(
        y.flatten(0, 1), target.flatten(), ignore_index=IGNORE, reduction="sum"
    )


def mean(y, target):
    if target.ndim == 1:
        return torch.nn.functional.cross_entropy(y, target)
    return torch.nn.functional.cross_entropy(y.flatten(0, 1), target.flatten(), ignore_index=IGNORE)


def found(model, batch, carried=None, **options):
    model.zero_grad(set_to_none=True)
    step = learn.build("tbptt", options).step(model, batch, carried, Loop(mean))
    return [p.grad for p in model.parameters()], step


def close(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("window", [1, 2, 5, 6, 12])
def test_gradient_is_that_of_a_loop_over_windows(batch, window):
    model = make()
    ours, step = found(model, batch, window=window)
    model.zero_grad()
    state, total, count = None, 0.0, (batch.target != IGNORE).sum()
    for x, target, reset in zip(
        batch.x.split(window, 1),
        batch.target.split(window, 1),
        batch.reset.split(window, 1),
        strict=True,
    ):
        y, state = model(x, state, reset=reset)
        loss = nats(y, target) / count
        loss.backward()
        total += loss.item()
        state = detach(state)
    close(ours, [p.grad for p in model.parameters()])
    assert step.loss.item() == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize(("window", "overlap"), [(3, 2), (4, 4), (2, 7), (5, 1)])
def test_overlap_reads_the_steps_before_once_more(batch, window, overlap):
    model = make()
    ours, _ = found(model, batch, window=window, overlap=overlap)
    model.zero_grad()
    count = (batch.target != IGNORE).sum()
    for start in range(0, TIME, window):
        lead, stop = max(0, start - overlap), min(start + window, TIME)
        with torch.no_grad():
            before = None
            if lead:
                _, before = model(batch.x[:, :lead], reset=batch.reset[:, :lead])
        y, _ = model(batch.x[:, lead:stop], before, reset=batch.reset[:, lead:stop])
        (nats(y[:, start - lead :], batch.target[:, start:stop]) / count).backward()
    close(ours, [p.grad for p in model.parameters()])


def test_overlap_of_everything_is_the_whole_gradient(batch):
    model = make()
    ours, _ = found(model, batch, window=4, overlap=TIME)
    y, _ = model(batch.x, reset=batch.reset)
    close(ours, torch.autograd.grad(mean(y, batch.target), list(model.parameters())))


@pytest.mark.parametrize("window", [TIME, 64])
@pytest.mark.parametrize("pool", ["none", "mean", "last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_window_as_long_as_the_sequence_gives_the_bits_of_bptt(batch, window, pool, dtype):
    model = make(pool).to(dtype)
    lengths = torch.tensor([TIME, 5, 9])
    target = batch.target if pool == "none" else batch.target[:, 0]
    batch = Batch(batch.x.to(dtype), target, lengths, None)
    ours, step = found(model, batch, window=window, overlap=3)
    model.zero_grad(set_to_none=True)
    other = learn.build("bptt").step(model, batch, None, Loop(mean))
    assert all(map(torch.equal, ours, [p.grad for p in model.parameters()]))
    assert torch.equal(step.loss, other.loss)
    assert torch.equal(step.y, other.y)


def test_no_gradient_reaches_inputs_before_the_window(batch):
    model = make()
    batch.target[1, 10:] = 0
    batch.target[:, :10] = IGNORE
    batch.x.requires_grad_()
    found(model, batch, window=5)
    assert batch.x.grad[:, :10].eq(0).all()
    assert batch.x.grad[:, 10:].ne(0).any()
    batch.x.grad = None
    found(model, batch, window=5, overlap=2)
    assert batch.x.grad[:, :8].eq(0).all()
    assert batch.x.grad[:, 8:10].ne(0).any()


class Leak(torch.nn.Module):
    """``h_t = decay h_{t-1} + gain u_t``, of which the gain is learned."""

    def __init__(self, decay):
        super().__init__()
        self.decay, self.gain = decay, torch.nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x, state=None, reset=None):
        h, found = torch.zeros_like(x[:, 0]) if state is None else state, []
        for u in x.unbind(1):
            h = self.decay * h + self.gain * u
            found.append(h)
        return torch.stack(found, 1), h


def slope(decay, **options):
    """The learned derivative of the mean over the last 60 of 500 states by the gain."""
    model, x = Leak(decay), torch.ones(1, 500, 1, dtype=torch.float64)
    learner = learn.build("tbptt" if options else "bptt", options)
    learner.step(model, Batch(x, x, None, None), None, Loop(late_mean(x.shape[1])))
    return model.gain.grad.item()


def late_mean(time, asked=60):
    """A mean over the last steps alone, whatever piece it is given: it counts them."""
    seen = 0

    def loss(y, target):
        nonlocal seen
        seen += y.shape[1]
        late = y.flatten()[max(0, y.shape[1] - max(0, seen - (time - asked))) :]
        return late.sum() * time / (asked * y.shape[1])

    return loss


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.95])
@pytest.mark.parametrize("reach", [1, 5, 20])
def test_what_is_lost_of_a_gradient_is_the_decay_to_the_reach(decay, reach):
    """With windows of ``reach`` steps: decay^reach; with chunks, the mean over their steps."""
    whole = slope(decay)
    assert whole == pytest.approx(1 / (1 - decay))
    every = slope(decay, window=1, overlap=reach - 1)
    assert 1 - every / whole == pytest.approx(decay**reach, rel=1e-9)
    pieces = slope(decay, window=reach)
    lost = sum(decay**j for j in range(1, reach + 1)) / reach
    assert 1 - pieces / whole == pytest.approx(lost, rel=1e-9)


def test_windows_have_the_times_of_their_steps(batch):
    model, dt = make("none", mixer="cfc"), torch.rand(ROWS, TIME, dtype=torch.float64)
    timed = Batch(batch.x, batch.target, None, batch.reset, dt)
    _, step = found(model, timed, window=4)
    whole, _ = model(batch.x, reset=batch.reset, dt=dt)
    torch.testing.assert_close(step.y, whole.detach())


def test_a_row_learns_in_the_window_that_it_ends_in(batch):
    model = make("mean")
    lengths = torch.tensor([TIME, 5, 8])  # the last at the end of a window
    target = batch.target[:, 0]
    ours, step = found(model, Batch(batch.x, target, lengths, None), window=4)
    model.zero_grad()
    answers = []
    for row, length in enumerate(lengths.tolist()):
        start = (length - 1) // 4 * 4
        x, before = batch.x[row : row + 1], None
        if start:
            with torch.no_grad():
                _, before = model(x[:, :start])
        y, _ = model(x[:, start:length], before)
        (mean(y, target[row : row + 1]) / ROWS).backward()
        answers.append(y.detach())
    close(ours, [p.grad for p in model.parameters()])
    torch.testing.assert_close(step.y, torch.cat(answers))
    assert step.loss.item() == pytest.approx(mean(step.y, target).item(), rel=1e-12)


def test_update_after_each_window_is_a_loop_of_sgd(batch):
    model = make()
    by_hand = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def update():
        optimizer.step()
        optimizer.zero_grad()

    loop = Loop(mean, update=update)
    learn.build("tbptt", {"window": 4, "update": "window"}).step(model, batch, None, loop)
    update()  # what is left is the loop's
    optimizer, state = torch.optim.SGD(by_hand.parameters(), 0.1), None
    for start in range(0, TIME, 4):
        piece = slice(start, start + 4)
        y, state = by_hand(batch.x[:, piece], state, reset=batch.reset[:, piece])
        state = detach(state)
        optimizer.zero_grad()
        mean(y, batch.target[:, piece]).backward()
        optimizer.step()
    close(list(model.parameters()), list(by_hand.parameters()))


class Kept:
    """Stands for a saved tensor; counts the bytes of those that are alive."""

    now = peak = 0

    def __init__(self, x):
        # detached: an output that holds the node that holds it would never be freed
        self.x, self.size = x.detach(), x.numel() * x.element_size()
        Kept.now += self.size
        Kept.peak = max(Kept.peak, Kept.now)

    def __del__(self):
        Kept.now -= self.size


def peak(model, batch, learner):
    Kept.now = Kept.peak = 0
    with saved_tensors_hooks(Kept, lambda kept: kept.x):
        learner.step(model, batch, None, Loop(mean))
    return Kept.peak


@pytest.mark.parametrize("pool", ["none", "mean"])
def test_activations_of_one_window_are_all_that_is_kept(pool):
    model = make(pool, d_model=16)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())

    def needed(time, **options):
        x = torch.randn(2, time, 2, dtype=torch.float64)
        target = torch.zeros((2, time) if pool == "none" else (2,), dtype=torch.long)
        learner = learn.build("tbptt" if options else "bptt", options)
        return peak(model, Batch(x, target, None, None), learner)

    one = needed(32, window=32)
    assert one > 2 * weights  # it is activations that are looked at
    assert needed(1024, window=32) <= 1.01 * one
    assert needed(1024) > 25 * one


@pytest.mark.unchecked
def test_a_layer_that_reads_backward_is_named():
    with pytest.raises(
        ArgumentError,
        match=r"every layer must read forward in time to be cut into windows, got "
        r"blocks\.0\.mixer \(Bidirectional\), which reads in both .* Use the learner bptt\.",
    ):
        learn.build("tbptt").check(make(bidirectional=True))
    with pytest.raises(ArgumentError, match="got one that compares whole documents"):
        learn.build("tbptt").check(make("mean", documents=2))
    learn.build("tbptt").check(make())


@pytest.mark.unchecked
def test_options_outside_their_range_are_named():
    for options, words in (
        ({"window": 0}, "TBPTT: window must be an integer of at least 1, got 0"),
        ({"overlap": -1}, "TBPTT: overlap must be at least 0, got -1"),
        ({"window": "8"}, "learner 'tbptt': window must be int, got '8'"),
    ):
        with pytest.raises(ArgumentError, match=words):
            learn.build("tbptt", options)
    with pytest.raises(UnknownNameError, match=r"update named 'batches'\. Did you mean 'batch'"):
        learn.build("tbptt", {"update": "batches"})
    with pytest.raises(UnknownNameError, match=r"no option of learner 'tbptt' named 'windows'"):
        learn.build("tbptt", {"windows": 8})
    with pytest.raises(UnknownNameError, match=r"no learner named 'tbtt'\. Did you mean"):
        learn.build("tbtt")
