"""`torch.func.vmap` over streams, each with a state of its own, reads the rows of a batch."""

import pytest
import torch

from linrnn import mixers
from linrnn.state import map_state

WIDTH, ROWS = 8, 3


def batch_of(state):
    """A batch of one stream."""
    return map_state(lambda h: h[None], state)


def rows_of(results):
    y, state = results
    return y[0], map_state(lambda h: h[0], state)


@pytest.mark.sampled
@pytest.mark.parametrize("name", mixers.names())
def test_mapped_streams_are_the_rows_of_a_batch(name):
    options = dict(mixers.load(name).in_laws)  # segments so short that they end here
    module = mixers.build(name, WIDTH, options, dtype=torch.float64).eval()
    x = torch.randn(ROWS, 9, WIDTH, dtype=torch.float64)
    reset = torch.zeros(ROWS, 5, dtype=torch.bool)
    reset[1, 2] = reset[2, 4] = True  # so that streams are at different places
    _, state = module(x[:, :5], reset=reset)
    expected = module.step(x[:, 5], state)
    found = torch.func.vmap(lambda x, s: rows_of(module.step(x[None], batch_of(s))))(x[:, 5], state)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11)
    found = torch.func.vmap(lambda x, s: rows_of(module(x[None], batch_of(s))))(x[:, 5:], state)
    torch.testing.assert_close(found, module(x[:, 5:], state), rtol=1e-10, atol=1e-11)
    first = torch.func.vmap(lambda x: module(x[None])[0][0])(x[:, :1])
    torch.testing.assert_close(first, module(x[:, :1])[0], rtol=1e-10, atol=1e-11)
