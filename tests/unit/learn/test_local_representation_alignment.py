"""The rule of P-TNCN: its changes of weights, and their limit, the gradient of a prediction."""

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss

from linrnn import SequenceModel, learn
from linrnn.errors import ArgumentError
from linrnn.learn import Batch, Loop
from linrnn.learn.local_representation_alignment import deltas
from linrnn.mixers import PTNCN
from linrnn.state import detach, leaves

TIME, ROWS, WIDTH = 7, 3, 4


def make(n_layers=2, **options):
    torch.manual_seed(0)
    options = {"mixer": "p_tncn", "d_model": WIDTH, "norm": "layer", "pool": "none"} | options
    model = SequenceModel(2, 3, n_layers=n_layers, **options, dtype=torch.float64)
    return lively(model)


def lively(module):
    """Weights large enough for every term to be seen."""
    with torch.no_grad():
        for name, p in module.named_parameters():
            if name.rpartition(".")[2] in dict(PTNCN(1).named_parameters()):
                p.mul_(15)
    return module


@pytest.fixture
def batch():
    random = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, TIME, 2, dtype=torch.float64, generator=random)
    target = torch.randn(ROWS, TIME, 3, dtype=torch.float64, generator=random)
    reset = torch.zeros(ROWS, TIME, dtype=torch.bool)
    reset[0, 3] = reset[2, 5] = True
    return Batch(x, target, None, reset)


def gradients(model, batch, carried=None, loop=None, **options):
    model.zero_grad(set_to_none=True)
    learner = learn.build("local_representation_alignment", options)
    learner.check(model)
    step = learner.step(model, batch, carried, loop or Loop(mse_loss))
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}, step


def close(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, g in ours.items():
        torch.testing.assert_close(g, theirs[name], rtol=1e-9, atol=1e-13, msg=name)


def published(layer, x, reset, valid, feedback):
    """Row by row and step by step, in the row vectors of the paper."""
    W1, W2, E1, E2, M1, M2, U1, V1, V2 = (
        getattr(layer, n).detach().mT
        for n in ("W1", "W2", "E1", "E2", "M1", "M2", "U1", "V1", "V2")
    )
    found = {n: torch.zeros(WIDTH, WIDTH, dtype=x.dtype) for n, _ in layer.named_parameters()}
    for row in range(len(x)):
        y1 = y2 = u = torch.zeros(WIDTH, dtype=x.dtype)
        for t in range(x.shape[1]):
            if reset[row, t]:
                y1 = y2 = u = torch.zeros(WIDTH, dtype=x.dtype)
            here = x[row, t]
            z2, z1 = y1.tanh() @ M2 + y2 @ V2, u @ M1 + y2 @ U1 + y1 @ V1
            f1, f2 = z1.tanh(), z2.tanh()
            e1, e_x = f2 @ W2 - f1, f1 @ W1 - here
            t1 = torch.tanh(z1 - layer.beta * (e_x @ E1 - layer.alpha * e1))
            t2 = torch.tanh(z2 - layer.beta * (e1 @ E2))
            changes = {"W1": (f1, e_x), "W2": (f2, e1), "M1": (u, f1 - t1), "V1": (y1, f1 - t1)}
            changes |= {"U1": (y2, f1 - t1), "M2": (y1, f2 - t2), "V2": (y2, f2 - t2)}
            if valid[row, t]:
                for name, (of, at) in changes.items():
                    found[name] += torch.outer(of, at).mT
                for number in "12":
                    of, at = changes[f"W{number}"]
                    found[f"E{number}"] += feedback * torch.outer(of, at)
            y1, y2, u = t1, t2, here
    return found


@pytest.mark.parametrize("feedback", [1.0, 0.3, 0.0])
def test_changes_are_the_published_ones(feedback):
    torch.manual_seed(0)
    layer = lively(PTNCN(WIDTH, alpha=0.6, beta=0.3, dtype=torch.float64))
    x = torch.randn(ROWS, TIME, WIDTH, dtype=torch.float64)
    reset = torch.rand(ROWS, TIME) < 0.2
    valid = torch.arange(TIME) < torch.tensor([TIME, 2, 5])[:, None]
    found = deltas(layer, x, layer.init_state(ROWS), reset, valid, feedback)
    close(found, published(layer, x, reset, valid, feedback))
    assert all(d.shape == (WIDTH, WIDTH) for d in found.values())


@pytest.mark.parametrize(("beta", "far"), [(1e-3, 1e-3), (1e-5, 1e-5)])
def test_small_moves_give_the_gradient_of_one_prediction(beta, far):
    """With E_1 = W_1^T, no error of the first layer's own, and the cross-entropy of its output."""
    torch.manual_seed(0)
    layer = lively(PTNCN(WIDTH, output="sigmoid", alpha=0.0, beta=beta, dtype=torch.float64))
    with torch.no_grad():
        layer.E1.copy_(layer.W1.mT)
    before = {n: torch.tanh(torch.randn(ROWS, WIDTH, dtype=torch.float64)) for n in ("y1", "y2")}
    before |= {"u": torch.rand(ROWS, WIDTH, dtype=torch.float64)}
    x = torch.rand(ROWS, 1, WIDTH, dtype=torch.float64)
    found = deltas(layer, x, before, None, torch.ones(ROWS, 1, dtype=torch.bool), 1.0)
    z1 = before["u"] @ layer.M1.mT + before["y2"] @ layer.U1.mT + before["y1"] @ layer.V1.mT
    ahead = torch.tanh(z1) @ layer.W1.mT
    loss = binary_cross_entropy_with_logits(ahead, x[:, 0], reduction="sum")
    names = ("M1", "V1", "U1", "W1")
    expected = torch.autograd.grad(loss, [getattr(layer, n) for n in names])
    for name, g in zip(names, expected, strict=True):
        ours = found[name] / (1 if name == "W1" else beta)
        assert float((ours - g).abs().max()) < (1e-12 if name == "W1" else far)


def test_far_moves_still_point_down():
    torch.manual_seed(0)
    layer = lively(PTNCN(WIDTH, output="sigmoid", alpha=0.0, beta=0.1, dtype=torch.float64))
    with torch.no_grad():
        layer.E1.copy_(layer.W1.mT)
    x = torch.rand(ROWS, 1, WIDTH, dtype=torch.float64)
    before = {n: torch.rand(ROWS, WIDTH, dtype=torch.float64) for n in ("y1", "y2", "u")}
    found = deltas(layer, x, before, None, torch.ones(ROWS, 1, dtype=torch.bool), 1.0)
    z1 = before["u"] @ layer.M1.mT + before["y2"] @ layer.U1.mT + before["y1"] @ layer.V1.mT
    ahead = torch.tanh(z1) @ layer.W1.mT
    loss = binary_cross_entropy_with_logits(ahead, x[:, 0], reduction="sum")
    (g,) = torch.autograd.grad(loss, layer.M1)
    assert float(torch.cosine_similarity(found["M1"].flatten(), g.flatten(), 0)) > 0.999


@pytest.mark.parametrize("window", [2, TIME])
def test_any_window_adds_up_the_same(window, batch):
    model = make()
    ours, step = gradients(model, batch, window=window)
    theirs, other = gradients(model, batch, window=1)
    close(ours, theirs)
    torch.testing.assert_close(step.y, other.y)


def test_a_stack_learns_each_layer_from_its_input_and_the_rest_past_the_layers(batch):
    model = make(2)
    found, step = gradients(model, batch, window=TIME)
    inputs = []
    handles = [
        block.mixer.register_forward_hook(lambda m, a, out: inputs.append(a[0].detach()))
        for block in model.blocks
    ]
    y, after = model(batch.x, reset=batch.reset)
    for handle in handles:
        handle.remove()
    torch.testing.assert_close(step.y, y.detach())
    torch.testing.assert_close(leaves(step.state), [h.detach() for h in leaves(after)])
    valid = torch.ones(ROWS, TIME, dtype=torch.bool)
    for i, (block, x) in enumerate(zip(model.blocks, inputs, strict=True)):
        for n, d in published(block.mixer, x, batch.reset, valid, 1.0).items():
            ours = found[f"blocks.{i}.mixer.{n}"]
            torch.testing.assert_close(ours, d / (ROWS * TIME), rtol=1e-9, atol=1e-13)
    whole = torch.autograd.grad(mse_loss(y, batch.target), [model.head.weight])
    torch.testing.assert_close(found["head.weight"], whole[0])
    assert found["encoder.weight"].abs().max() > 0


def test_nothing_keeps_a_history_and_a_carried_state_goes_on(batch):
    model = make()
    whole, step = gradients(model, batch, window=TIME)
    first = Batch(batch.x[:, :4], batch.target[:, :4], None, batch.reset[:, :4])
    second = Batch(batch.x[:, 4:], batch.target[:, 4:], None, batch.reset[:, 4:])
    a, middle = gradients(model, first)
    assert not any(h.requires_grad for h in leaves(middle.state))
    b, last = gradients(model, second, middle.state)
    torch.testing.assert_close(leaves(last.state), leaves(step.state))
    mixed = {n: (4 * a[n] + 3 * b[n]) / TIME for n in whole}
    close(mixed, whole)


def test_padding_is_not_learned_from(batch):
    model, lengths = make(pool="last"), torch.tensor([TIME, 3, 1])
    one = Batch(batch.x, batch.target[:, 0], lengths, None)
    found, _ = gradients(model, one, window=2)
    other = one._replace(x=one.x.clone())
    other.x[torch.arange(TIME) >= lengths[:, None]] += 1
    close(gradients(model, other, window=2)[0], found)


def test_prediction_of_a_rhythm_is_learned_by_steps_after_each_window():
    torch.manual_seed(0)
    layer = PTNCN(2, dtype=torch.float64)
    lively(layer)
    model = SequenceModel(
        2, 2, mixer=layer, d_model=2, n_layers=1, norm="none", pool="none", block="bare",
        skip=False, dtype=torch.float64,
    )  # fmt: skip
    with torch.no_grad():
        for linear in (model.encoder, model.head):
            linear.weight.copy_(torch.eye(2))
            linear.bias.zero_()
            linear.requires_grad_(False)
    turn = torch.arange(241) * torch.pi / 3
    x = torch.stack([turn.cos(), turn.sin()], 1)[None].double()
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)

    def update():
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    batch = Batch(x[:, :-1], x[:, 1:], None, None)
    before = mse_loss(model(batch.x)[0], batch.target)

    def loss(y, target):
        return mse_loss(y.detach().requires_grad_(), target)

    for _ in range(4):
        gradients(model, batch, loop=Loop(loss, update=update), update="window")
        update()
    assert mse_loss(model(batch.x)[0], batch.target) < before / 10


OTHERS = ("lru", "gru", "mamba", "delta_net", "tanh_rnn")


def with_feedback(model, **options):
    """The learner after its feedback to layers was drawn, and that by the names of layers."""
    rule = learn.build("local_representation_alignment", options)
    x = torch.zeros(1, 1, 2, dtype=torch.float64)
    rule.step(model, Batch(x, torch.zeros(1, 1, 3).double(), None, None), None, Loop(mse_loss))
    rule.fed_back._found = {}
    model.zero_grad(set_to_none=True)
    return rule, rule.fed_back.weights


@pytest.mark.parametrize("mixer", OTHERS)
@pytest.mark.parametrize("beta", [1.0, 0.2])
def test_of_one_layer_before_its_head_it_is_the_gradient_of_each_step(mixer, beta, batch):
    """With E = W^T: the state before a step enters it as a constant."""
    model = make(1, mixer=mixer, block="bare", norm="none", skip=False)
    rule, weights = with_feedback(model, beta=beta, feedback=0.0)
    weights["blocks.0.mixer"] = model.head.weight.detach().mT.clone()
    rule.step(model, batch, None, Loop(mse_loss))
    found = {n: p.grad for n, p in model.blocks[0].mixer.named_parameters()}
    model.zero_grad(set_to_none=True)
    layer, x, answers = model.blocks[0].mixer, model.encoder(batch.x).detach(), []
    state = layer.init_state(ROWS)
    for t in range(TIME):
        y, state = layer(x[:, t : t + 1], detach(state), reset=batch.reset[:, t : t + 1])
        answers.append(model.head(y))
    mse_loss(torch.cat(answers, 1), batch.target).backward()
    for name, p in layer.named_parameters():
        expected = torch.zeros_like(p) if p.grad is None else beta * p.grad
        ours = torch.zeros_like(p) if found[name] is None else found[name]
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-13, msg=name)


def test_the_target_of_each_layer_of_a_stack_comes_from_the_answer(batch):
    model = make(2, mixer=("gru", "lru"))
    rule, weights = with_feedback(model, beta=0.5, feedback=0.4, rate=0.3)
    before = {n: w.clone() for n, w in weights.items()}
    step = rule.step(model, batch, None, Loop(mse_loss))
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    inputs = []
    for block in model.blocks:
        block.mixer.register_forward_hook(lambda m, a, out: inputs.append((m, a[0].detach(), out)))
    y, _ = model(batch.x, reset=batch.reset)
    torch.testing.assert_close(step.y, y.detach())
    e = (2 * (y - batch.target) / y.numel()).detach()
    after = rule.state_dict()
    for i, (layer, x, (whole, _)) in enumerate(list(inputs)):
        name, state, losses = f"blocks.{i}.mixer", layer.init_state(ROWS), []
        for t in range(TIME):
            z, state = layer(x[:, t : t + 1], detach(state), reset=batch.reset[:, t : t + 1])
            target = (z - 0.5 * e[:, t : t + 1] @ before[name].mT).detach()
            losses.append((z - target).square().sum() / 2)
        grads = torch.autograd.grad(sum(losses), list(layer.parameters()), allow_unused=True)
        for (n, _), g in zip(layer.named_parameters(), grads, strict=True):
            torch.testing.assert_close(found[f"{name}.{n}"], g, rtol=1e-9, atol=1e-13)
        change = torch.einsum("bti,bto->io", whole.detach(), e)
        expected = before[name] - 0.3 * 0.4 * change
        torch.testing.assert_close(after[f"feedback/{name}"], expected, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("mixer", ["gru", ("lru", "p_tncn")])
def test_any_window_adds_up_the_same_for_other_layers(mixer, batch):
    model = make(2, mixer=mixer)
    rule, _ = with_feedback(model)
    drawn, sums = rule.state_dict(), []
    for window in (1, 3, TIME):
        rule = learn.build("local_representation_alignment", {"window": window})
        rule.load_state_dict(drawn)
        model.zero_grad(set_to_none=True)
        step = rule.step(model, batch, None, Loop(mse_loss))
        assert not any(h.requires_grad for h in leaves(step.state))
        grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        kept = rule.state_dict()
        assert not any(w.requires_grad for w in kept.values())
        sums.append(grads | kept)
    close(sums[1], sums[0])
    close(sums[2], sums[0])


def learned(feedback, *, frozen=False):
    """Last losses of a GRU that learns a product and a delay, and how its feedback lies."""
    model = make(1, mixer="gru", d_model=8, block="bare", skip=False, norm="none")
    model.blocks[0].mixer.requires_grad_(not frozen)
    rule = learn.build(
        "local_representation_alignment", {"feedback": feedback, "rate": 0.3, "window": 20}
    )
    weights = [p for p in model.parameters() if p.requires_grad]
    sgd, losses = torch.optim.SGD(weights, 0.3, weight_decay=1e-3), []
    for i in range(200):
        x = torch.randn(8, 20, 2, generator=torch.Generator().manual_seed(i)).double()
        target = torch.stack([x[..., 0], x[..., 0] * x[..., 1], x[..., 1].roll(1, 1)], 2)
        sgd.zero_grad()
        step = rule.step(model, Batch(x, target, None, None), None, Loop(mse_loss))
        sgd.step()
        losses.append(float(step.loss))
    if frozen:
        return sum(losses[-10:]) / 10, None
    (E,) = rule.state_dict().values()
    cosine = torch.cosine_similarity(E.flatten(), model.head.weight.detach().mT.flatten(), 0)
    return sum(losses[-10:]) / 10, float(cosine)


@pytest.mark.slow
def test_layers_learn_by_feedback_that_stays_and_more_by_feedback_that_learns():
    """Beside a head that learns alone; learned feedback turns to the transposed head."""
    (alone, _), (drawn, _), (both, cosine) = learned(0, frozen=True), learned(0.0), learned(1.0)
    assert drawn < alone / 2
    assert both < drawn
    assert cosine > 0.9


@pytest.mark.unchecked
def test_errors():
    with pytest.raises(ArgumentError, match="feedback must be at least 0 and finite, got -1"):
        learn.build("local_representation_alignment", {"feedback": -1.0})
    with pytest.raises(ArgumentError, match="beta must be"):
        learn.build("local_representation_alignment", {"beta": 0.0})
    model = make(mixer=("p_tncn", "lru"), pool="last")
    with pytest.raises(ArgumentError, match=r"got 'last' with blocks\.1\.mixer \(LRU\)"):
        learn.build("local_representation_alignment").check(model)
    rule = learn.build("local_representation_alignment")
    rule.load_state_dict({"feedback/blocks.7.mixer": torch.zeros(4, 3)})
    with pytest.raises(ArgumentError, match=r"layers of the model, got 'blocks\.7\.mixer'"):
        rule.begin(make(), 1, anew=True)
