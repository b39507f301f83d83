"""S4 and the convolution of its authors, by numbers that this gave once.

Theirs trains C (1 - A^L) for a length L, ours C; the numbers are of an L at which they are equal.
"""

import torch

from linrnn.mixers import S4
from published.case import Case, difference, fill, golden, stepped, waves


def _case(name, **options):
    def compare():
        numbers = golden("s4")["numbers"][name]
        layer = S4(4, d_state=8, dtype=torch.float64, **options)
        names = ["log_dt", "D", "A_log", "A_im", "P_re", "P_im", "B_re", "B_im", "C_re", "C_im"]
        names += ["out.weight", "out.bias"] if "channels" in options else []
        parameters = [layer.get_parameter(n) for n in names]
        fill(parameters)
        x = waves(2, 128, 4).requires_grad_()
        y = layer(x)[0]
        weight = waves(*y.shape, rate=0.71)
        grads = torch.autograd.grad((y * weight).sum(), [x, *parameters])

        def apart(tensor, name):
            sample = tensor.detach().flatten()[:: 13 if name in "xy" else 1]
            return difference(sample, torch.tensor(numbers[name], dtype=torch.float64))

        return {
            "forward": apart(y, "y"),
            "step": apart(stepped(layer, x.detach()), "y"),
            "gradients": max(map(apart, grads, ("x", *names))),
        }

    return compare


SOURCE = "state-spaces/s4 at e757cef, FFTConv(mode='dplr')"
BLOCK = "GELU, the linear layer and the GLU of S4Block belong to the block"
SHORT = "default but for the sizes"
WHOLE = "state-spaces/s4 at e757cef, S4Block"
CASES = [
    Case("s4", SOURCE, SHORT, "layer", _case("legs"), 1e-9, BLOCK),
    Case("s4", SOURCE, "legt", "layer", _case("legt", measure="legt"), 1e-9, BLOCK),
    Case(
        *("s4", SOURCE, "hippo, n_ssm=2", "layer"),
        *(_case("hippo", measure="hippo", n_ssm=2), 1e-9, BLOCK),
    ),
    Case(
        *("s4", WHOLE, SHORT, "layer"),
        *(_case("block, channels=1", channels=1), 1e-9),
    ),
    Case(
        *("s4", WHOLE, "channels=2", "layer"),
        *(_case("block, channels=2", channels=2), 1e-9),
    ),
    Case(
        *("s4", WHOLE, "channels=2, by FFT", "layer"),
        *(_case("block, channels=2", channels=2, form="conv"), 1e-9),
    ),
]
