"""A reset begins anew whatever the state was, numbers that are not finite among them."""

from inspect import signature

import pytest
import torch

from linrnn import mixers
from linrnn.state import map_state

WIDTH = 8


def cases():
    for name in mixers.names():
        yield pytest.param(name, {}, id=name)
        for option in sorted({"window", "chunk"} & {*signature(mixers.load(name)).parameters}):
            yield pytest.param(name, {option: 4}, id=f"{name}-{option}")


@pytest.mark.parametrize("time", [1, 5])
@pytest.mark.parametrize(("name", "options"), [*cases()])
def test_a_reset_forgets_what_is_not_finite(name, options, time):
    mixer = mixers.build(name, WIDTH, options).eval()
    x, reset = torch.randn(2, time, WIDTH), torch.zeros(2, time, dtype=torch.bool)
    reset[0, 0] = True
    _, busy = mixer(torch.randn(2, 9, WIDTH))
    spoilt = map_state(torch.clone, busy)

    def spoil(h):
        if h.is_floating_point() or h.is_complex():
            h[0] = float("nan")
        return h

    map_state(spoil, spoilt)
    y, _ = mixer(x, spoilt, reset=reset)
    fresh, _ = mixer(x)
    going_on, _ = mixer(x, busy)
    torch.testing.assert_close(y[0], fresh[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(y[1], going_on[1], rtol=1e-4, atol=1e-5)
