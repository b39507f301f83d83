"""What a GPU would have to wait for: numbers read back, or copied there, within a call."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from linrnn import mixers
from linrnn.ops import use_backend

#: A number that Python looks at, one that is copied from it, sizes that depend on values.
WAITING = ("aten._local_scalar_dense", "aten.lift_fresh", "aten.nonzero", "aten.masked_select")

#: These ask once a call whether all rows are at the same step.
ASK_WHERE_ROWS_ARE = {
    *("block_recurrent", "block_state", "compressive_transformer", "hippo", "infini_transformer"),
    *("memformer", "recurrent_attention_network", "rmt", "tlb", "token_turing_machine"),
}


class Waits(TorchDispatchMode):
    """Notes every operator that makes the processor wait for the device."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if str(function).startswith(WAITING):
            self.found.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", mixers.names())
def test_a_call_and_its_gradients_never_wait(name):
    mixer = mixers.load(name)(8)
    x = torch.randn(2, 20, 8, requires_grad=True)
    with use_backend("tree"), Waits() as waits:
        y, _ = mixer(x)
        y.square().sum().backward()
    assert bool(waits.found) == (name in ASK_WHERE_ROWS_ARE), waits.found
