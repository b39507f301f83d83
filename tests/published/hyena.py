"""Hyena and the operators of its authors, with heads too, by numbers that these gave once."""

import torch

from linrnn.mixers import Hyena
from published.case import Case, against_numbers, fill, golden, mapped_against_numbers, waves


def _case(**options):
    def compare():
        numbers = golden("hyena")["numbers"]
        layer = Hyena(4, d_filter=8, l_max=32, dtype=torch.float64, **options)
        fill([layer.get_parameter(name) for name in numbers if name not in ("x", "y")])
        return against_numbers(layer, waves(2, 29, 4), numbers, 7)

    return compare


def _ours_of(theirs):
    """Their parameters by our names; they multiply the third with the second and index by this."""

    def reordered(rows):
        q, v, k = rows.chunk(3)
        return torch.cat([q, k, v])

    groups = theirs["short_filter.bias"].shape[0] // theirs["in_proj.bias"].shape[0]
    ours = {
        "in_proj.weight": reordered(theirs["in_proj.weight"].repeat(groups, 1)),
        "in_proj.bias": reordered(theirs["in_proj.bias"].repeat(groups)),
        "short.weight": reordered(theirs["short_filter.weight"].squeeze(1)),
        "short.bias": reordered(theirs["short_filter.bias"]),
        "bias": theirs["long_conv.bias"],
        "freq": theirs["long_conv.filter.implicit_filter.1.freq"].flatten(),
        "out_proj.weight": theirs["out_proj.weight"],
        "out_proj.bias": theirs["out_proj.bias"],
    }
    for ours_at, theirs_at in enumerate((0, 2, 4, 6)):
        for name in ("weight", "bias")[: 1 if theirs_at == 6 else 2]:
            linear = f"long_conv.filter.implicit_filter.{theirs_at}.{name}"
            ours[f"ffn.{ours_at}.{name}"] = theirs[linear]
    return ours


def _heads(key):
    def compare():
        layer = Hyena(8, n_heads=2, d_filter=5, l_max=32, dtype=torch.float64)
        numbers = golden("multi_hyena")["numbers"][key]
        return mapped_against_numbers(layer, waves(1, 29, 8), _ours_of, numbers)

    return compare


SOURCE = "HazyResearch/safari at 02220c6, HyenaOperator"
NOTE = "positions are constants; the program may train them"
MULTI = "athms/mad-lab@0f49a45, MultiHeadHyenaOperator"
WIDTH = f"its num_heads are the channels of a head, {NOTE}"
CASES = [
    Case("hyena", SOURCE, "default but for the sizes", "layer", _case(), 1e-9, NOTE),
    Case("hyena", SOURCE, "blocks of time", "layer", _case(form="blocks"), 1e-9, NOTE),
    Case(
        *("hyena", MULTI, "filter_cls='implicit', proj_groups=1", "layer"),
        *(_heads("proj_groups=1"), 1e-9, WIDTH),
    ),
    Case(
        *("hyena", MULTI, "filter_cls='implicit'", "layer"),
        *(_heads("default"), 1e-9, WIDTH),
    ),
]
