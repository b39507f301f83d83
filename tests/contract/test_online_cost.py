"""Costs of a stream for a learner: equal at every step, in operators, bytes and memory."""

import gc

import pytest
import torch
from torch._subclasses import FakeTensor
from torch.nn.functional import mse_loss

from linrnn import SequenceModel, learn
from linrnn.errors import ArgumentError
from linrnn.learn import LearningSession

EARLY, LATE, SOME = 8, 160, 8
"""First steps of two stretches, and how long each is."""
GROWTH = 1024
"""Bytes alive that may be more at the late stretch: of a rule that iterates, a round more."""
CPU = torch.profiler.ProfilerActivity.CPU


def spent(calls):
    """Operators that calls were made of, and bytes that they asked memory for."""
    with torch.profiler.profile(activities=[CPU], profile_memory=True) as profile:
        for call in calls:
            call()
    events = [e for e in profile.events() if e.name.startswith("aten::")]
    memory = [e.cpu_memory_usage for e in profile.events() if e.cpu_parent is None]
    return len(events), sum(max(0, m) for m in memory)


def living():
    """Bytes of all storages that a tensor is alive of."""
    gc.collect()
    tensors = [x for x in gc.get_objects() if issubclass(type(x), torch.Tensor)]
    # others have no storage, and those of graphs that earlier tests made have no memory
    tensors = [x for x in tensors if x.layout is torch.strided and not isinstance(x, FakeTensor)]
    return sum(
        {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}.values()
    )


def build(name):
    torch.manual_seed(0)
    options = {"mixer": "mingru", "d_model": 4, "n_layers": 1, "norm": "layer", "pool": "none"}
    model = SequenceModel(2, 1, **options).eval()
    rule = learn.build(name)
    try:
        rule.check(model)
    except ArgumentError as refused:
        pytest.skip(str(refused))
    return model, rule


def measured(steps):
    """Calls, bytes and what is alive after them, early and late, of an iterator that learns."""
    found, t = [], 0
    for begin in (EARLY, LATE):
        while t < begin:
            next(steps)
            t += 1
        found.append((*spent([lambda: next(steps)] * SOME), living()))
        t += SOME
    return found


@pytest.mark.parametrize("name", learn.names())
def test_the_cost_of_a_step_does_not_grow(name):
    model, rule = build(name)
    generator = torch.Generator().manual_seed(1)
    session = LearningSession(model, rule, mse_loss, torch.optim.SGD(model.parameters(), 1e-3))
    steps = (
        session.feed(torch.randn(2, generator=generator), torch.zeros(1))
        for _ in range(LATE + SOME)
    )
    early, late = measured(steps)
    # a rule that iterates may need a round more; what grows with the steps has grown tenfold
    assert all(after <= 1.2 * before for before, after in zip(early[:2], late[:2], strict=True))
    assert min(early) > 0
    # the difference: tensors of earlier tests are alive too, and would hide a growth in a ratio
    assert late[2] - early[2] <= GROWTH


def test_a_learner_that_keeps_the_past_is_noticed():
    """The same count, of back-propagation through all that was read."""
    model, rule = build("bptt")
    x = torch.randn(1, LATE + SOME, 2)

    def steps():
        for t in range(LATE + SOME):
            batch = learn.Batch(x[:, : t + 1], torch.zeros(1, t + 1, 1), None, None)
            yield rule.step(model, batch, None, learn.Loop(mse_loss))

    early, late = measured(steps())
    assert late[1] > 3 * early[1]


def test_a_past_that_stays_in_memory_is_noticed():
    """A little a step, beside much that is not the learner's."""
    of_others, kept = torch.zeros(1 << 20), []

    def steps():
        for _ in range(LATE + SOME):
            yield kept.append(torch.zeros(8))

    early, late = measured(steps())
    assert late[2] - early[2] > GROWTH
    assert len(of_others) > len(kept)
