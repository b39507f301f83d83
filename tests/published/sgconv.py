"""SGConv and the convolution of its authors, by numbers that this gave once."""

import torch

from linrnn.mixers import SGConv
from published.case import Case, against_numbers, fill, golden, waves


def _case(name, **options):
    def compare():
        layer = SGConv(4, d_kernel=4, l_max=32, dtype=torch.float64, **options)
        fill([layer.w, layer.D])
        layer.norm.copy_(layer._unscaled().detach().norm(dim=1, keepdim=True))
        return against_numbers(layer, waves(2, 29, 4), golden("sgconv")["numbers"][name], 7)

    return compare


SOURCE = "ctlllll/SGConv at 97862df, GConv"
BLOCK = "GELU and the linear layer behind it belong to the block"
SIZES = "default but for the sizes"
CASES = [
    Case("sgconv", SOURCE, SIZES, "layer", _case("default"), 1e-9, BLOCK),
    Case("sgconv", SOURCE, "blocks of time", "layer", _case("default", form="blocks"), 1e-9, BLOCK),
    Case("sgconv", SOURCE, "decay_max=4", "layer", _case("decays", decay_last=0.25), 1e-9, BLOCK),
]
