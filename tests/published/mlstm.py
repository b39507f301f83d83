"""mLSTM and the layer of the xlstm package; with a sigmoid gate, that of mlstm_kernels in it."""

import torch

from linrnn.mixers import MLSTM
from published.case import Case, golden, mapped_against_numbers, waves


def _mapped(weights):
    """Their blocks are (out, in), and their norm has its weight beside 1."""
    return {
        "learnable_skip": weights["learnable_skip"],
        "proj_up.weight": weights["proj_up.weight"],
        "proj_down.weight": weights["proj_down.weight"],
        "conv1d.weight": weights["conv1d.conv.weight"][:, 0],
        "conv1d.bias": weights["conv1d.conv.bias"],
        "outnorm.weight": 1 + weights["mlstm_cell.outnorm.weight"],
        **{f"{name}_proj.weight": weights[f"{name}_proj.weight"].mT for name in "qkv"},
        **{
            f"{gate}.{kind}": weights[f"mlstm_cell.{gate}.{kind}"]
            for gate in ("igate", "fgate")
            for kind in ("weight", "bias")
        },
    }


def _xlstm(configuration, **options):
    layer = MLSTM(8, n_heads=2, d_inner=64, **options, dtype=torch.float64)
    numbers = golden("mlstm")["numbers"][configuration]
    return mapped_against_numbers(layer, waves(1, 9, 8), _mapped, numbers)


def _default():
    return _xlstm("default")


def _sigmoid():
    return _xlstm("sigmoid gate", input_gate="sigmoid")


def _sum():
    return _xlstm("sigmoid gate, not normalized", input_gate="sigmoid", normalize=False)


XLSTM, KERNELS = (
    "xlstm 2.0.6, mLSTMLayer",
    "mlstm_kernels 2.0.6, siging, in xlstm 2.0.6, mLSTMLayer",
)
CASES = [
    Case("mlstm", XLSTM, "default but for the sizes", "layer", _default, 1e-9),
    Case("mlstm", KERNELS, "sigmoid input gate", "layer", _sigmoid, 1e-9),
    Case("mlstm", KERNELS, "sigmoid input gate, normalize=False", "layer", _sum, 1e-9),
]
