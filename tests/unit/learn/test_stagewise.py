"""Networks that grow: gradients, what is frozen, and answers that do not change."""

import pytest
import torch
from test_traces import gradients, make
from torch.nn.functional import mse_loss

from linrnn import learn
from linrnn.errors import ArgumentError
from linrnn.learn import Batch, Loop
from linrnn.state import leaves

STAGES, WIDTH = 3, 6
MIXER = {"d_state": WIDTH, "n_stages": STAGES}


def network(**options):
    return make("constructive", mixer_options=MIXER, **options)


@pytest.fixture
def batch():
    random = torch.Generator().manual_seed(1)
    x = torch.randn(3, 13, 2, dtype=torch.float64, generator=random)
    target = torch.randn(3, 13, 3, dtype=torch.float64, generator=random)
    reset = torch.zeros(3, 13, dtype=torch.bool)
    reset[0, 7] = reset[2, 5] = True
    return Batch(x, target, None, reset)


def at_stage(stage, **options):
    """A learner that has come so far."""
    learner = learn.build("stagewise", {"every": 10} | options)
    learner.load_state_dict({"batches": torch.tensor(10 * stage + 3)})
    return learner


@pytest.mark.parametrize("stage", range(STAGES))
@pytest.mark.parametrize("window", [1, 4])
def test_gradient_of_the_stage_is_that_of_back_propagation(stage, window, batch):
    model = network()
    learner = at_stage(stage, window=window)
    found, _ = gradients(model, "stagewise", batch, learner=learner)
    assert model.blocks[0].mixer.grown == stage + 1
    whole, _ = gradients(model, "bptt", batch)  # of as many stages
    mine = {n for n in found if f"stages.{stage}." in n}
    assert len(mine) == 3
    for name in {n for n in found if "mixer" in n}:
        torch.testing.assert_close(found[name], whole[name], rtol=1e-8, atol=1e-12, msg=name)
    assert not any("stages." in n for n in found if n not in mine)


def test_what_the_stages_see_is_frozen_after_the_first(batch):
    model = network(norm="layer")
    first, _ = gradients(model, "stagewise", batch, learner=at_stage(0))
    later, _ = gradients(model, "stagewise", batch, learner=at_stage(1))
    below = {"encoder.weight", "encoder.bias", "blocks.0.norm.weight", "blocks.0.norm.bias"}
    stages = {n: {m for m in found if ".stages." in m} for n, found in enumerate((first, later))}
    assert first.keys() - stages[0] - below == later.keys() - stages[1]
    assert below < first.keys()
    assert not any(p.grad is not None for n, p in model.named_parameters() if n in below)
    assert all(p.requires_grad for p in model.parameters())


def test_growing_leaves_old_answers_and_features_as_they_are_bit_by_bit(batch):
    model = network()
    layer, learner = model.blocks[0].mixer, learn.build("stagewise", {"every": 1})
    optimizer = torch.optim.AdamW(model.parameters(), 0.1, weight_decay=0.1)
    answers, frozen = [], []
    for stage in range(STAGES):
        optimizer.zero_grad()
        learner.step(model, batch, None, Loop(mse_loss))
        optimizer.step()
        before, _ = model(batch.x)
        later = [p.clone() for s in layer.stages[stage + 1 :] for p in s.parameters()]
        with torch.no_grad():
            layer.grown.fill_(min(stage + 2, STAGES))
        assert torch.equal(model(batch.x)[0], before)
        answers.append(before)
        frozen.append([p.clone() for s in layer.stages[: stage + 1] for p in s.parameters()])
        if stage:  # what was learned before moved no more, decay or not
            pairs = zip(frozen[-2], frozen[-1], strict=False)
            assert all(torch.equal(a, b) for a, b in pairs)
        ahead = [p for s in layer.stages[stage + 1 :] for p in s.parameters()]
        assert all(map(torch.equal, later, ahead))
    assert not torch.equal(answers[0], answers[1])
    assert not torch.equal(answers[1], answers[2])  # each stage came to be read


def test_a_stage_sees_those_before_it_and_none_after():
    torch.manual_seed(0)
    layer = network().blocks[0].mixer
    x = torch.randn(1, 9, 4, dtype=torch.float64)
    _, before = layer(x)
    with torch.no_grad():
        layer.stages[1].r += 1
    _, after = layer(x)
    changed = [
        any((a != b).any() for a, b in zip(leaves(p), leaves(q), strict=True))
        for p, q in zip(before, after, strict=True)
    ]
    assert changed == [False, True, True]


def test_one_stage_is_a_columnar_network():
    from linrnn.mixers import Columnar, Constructive

    torch.manual_seed(0)
    ours = Constructive(3, d_state=5, n_stages=1, dtype=torch.float64)
    theirs = Columnar(3, d_state=5, dtype=torch.float64)
    given = {n.removeprefix("stages.0."): p for n, p in ours.state_dict().items()}
    theirs.load_state_dict({n: p for n, p in given.items() if n != "grown"})
    x = torch.randn(2, 9, 3, dtype=torch.float64)
    assert torch.equal(ours(x)[0], theirs(x)[0])


def test_the_memory_of_a_stage_is_two_traces_for_each_of_its_parameters(batch):
    model = network()
    learner = at_stage(2)
    gradients(model, "stagewise", batch, learner=learner)
    (name, traces), *others = learner.traces.items()
    assert not others
    assert name == "blocks.0.mixer.stages.2"
    stage = model.get_submodule(name)
    assert all(trace.shape[:2] == (2, 3) for trace in traces.values())
    each = sum(trace[0, 0].numel() for trace in traces.values())
    assert 0 < each <= sum(p.numel() for p in stage.parameters())


def test_traces_of_a_stage_that_is_frozen_are_forgotten(batch):
    model, learner = network(), learn.build("stagewise", {"every": 2})
    state = None
    for _ in range(5):
        state = learner.step(model, batch, state, Loop(mse_loss)).state
    assert list(learner.traces) == ["blocks.0.mixer.stages.2"]
    assert int(learner.state_dict()["batches"]) == 5


@pytest.mark.unchecked
def test_what_it_cannot_do_is_said():
    from linrnn.mixers import Constructive

    with pytest.raises(
        ArgumentError,
        match=r"^Stagewise: every layer must have stages to add, got blocks.0.mixer \(LRU\), "
        r"which is whole. Use the mixer constructive.$",
    ):
        learn.build("stagewise").check(make("lru"))
    with pytest.raises(ArgumentError, match="Stagewise: every must be an integer of at least 1"):
        learn.build("stagewise", {"every": 0})
    with pytest.raises(ArgumentError, match="n_stages must be a divisor of d_state=5, got 2"):
        Constructive(5)
