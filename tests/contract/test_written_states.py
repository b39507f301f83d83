"""Programs write into what a layer returned: zeros where an episode ends, a ReLU in place.

That changes what they write into, and nothing else.
"""

import pytest
import torch

from linrnn import SequenceModel, mixers
from linrnn.state import flatten, leaves, map_state

WIDTH = 8


def copies(*tensors):
    return [t.detach().clone() for t in tensors]


def assert_untouched(tensors, before):
    for now, then in zip(tensors, before, strict=True):
        torch.testing.assert_close(now, then, rtol=0, atol=0)


def results(module, rows):
    """Outputs and states of sequences and of steps, from nothing and from a state."""
    x = torch.randn(rows, 5, WIDTH)
    yield x, *module(x)
    yield x, *module(x[:, :1])
    _, state = module(x)
    yield x, *module(x[:, :2], state)
    yield x, *module.step(x[:, 0], module.init_state(rows))
    yield x, *module.step(x[:, 0], state)


@pytest.mark.sampled
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("name", mixers.names())
def test_a_state_and_an_output_may_be_written_into(name, rows, grad):
    module = mixers.build(name, WIDTH).eval()
    weights = [*module.parameters(), *module.buffers()]
    for setting in (grad, grad):  # the second time it may be recorded
        with torch.set_grad_enabled(setting):
            calls = [*results(module, rows)]
        for x, y, state in calls:
            others = [x, *weights]
            before, state_before = copies(*others), copies(*leaves(state))
            y.detach().fill_(7)
            assert_untouched([*others, *leaves(state)], [*before, *state_before])
            for part in leaves(state):
                part.detach().fill_(7)  # raises where rows lie at one place
            assert_untouched([*others, y], [*before, torch.full_like(y, 7)])


@pytest.mark.sampled
@pytest.mark.parametrize("name", mixers.names())
def test_the_first_state_may_be_written_into(name):
    """Parts are apart, and from what the module will begin with next time."""
    for module in (
        mixers.build(name, WIDTH).eval(),
        SequenceModel(WIDTH, 2, mixer=name, d_model=WIDTH, n_layers=2).eval(),
    ):
        state = module.init_state(2)
        for key, part in flatten(state).items():
            others = {k: h.clone() for k, h in flatten(state).items() if k != key}
            part.detach().fill_(1)
            assert_untouched([h for k, h in flatten(state).items() if k != key], others.values())
        again = module.init_state(2)
        zeros = map_state(torch.zeros_like, again)
        assert_untouched(leaves(again), leaves(zeros))


@pytest.mark.sampled
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", mixers.names())
def test_a_state_stays_as_it_was_where_the_next_one_is_written_into(name, grad):
    """A search goes back to an earlier state: also inside of a segment, whose memory waits."""
    module = mixers.build(name, WIDTH, dict(mixers.load(name).in_laws)).eval()
    x = torch.randn(2, 9, WIDTH)
    with torch.set_grad_enabled(grad):
        for time in (1, 2, 4, 6):
            _, state = module(x[:, :time])
            before = copies(*leaves(state))
            for pieces in (0, 1, 2):
                _, new = module(x[:, time : time + pieces], state)
                for part in leaves(new):
                    part.detach().fill_(7)
                assert_untouched(leaves(state), before)
            _, new = module.step(x[:, time], state)
            for part in leaves(new):
                part.detach().fill_(7)
            assert_untouched(leaves(state), before)
