"""Hyena and the operator of its authors, by numbers that this gave once."""

import torch

from linrnn.mixers import Hyena
from published.case import Case, against_numbers, fill, golden, waves


def _case(**options):
    def compare():
        numbers = golden("hyena")["numbers"]
        layer = Hyena(4, d_filter=8, l_max=32, dtype=torch.float64, **options)
        fill([layer.get_parameter(name) for name in numbers if name not in ("x", "y")])
        return against_numbers(layer, waves(2, 29, 4), numbers, 7)

    return compare


SOURCE = "HazyResearch/safari at 02220c6, HyenaOperator"
NOTE = "positions are constants; the program may train them"
CASES = [
    Case("hyena", SOURCE, "default but for the sizes", "layer", _case(), 1e-9, NOTE),
    Case("hyena", SOURCE, "blocks of time", "layer", _case(form="blocks"), 1e-9, NOTE),
]
