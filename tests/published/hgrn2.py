"""HGRN2 and the layer of flash-linear-attention, without bounds; its model, which shares them."""

from linrnn.interop._fla_layers import mapped
from published.case import Case, fla_cases
from published.hgrn import model_against_numbers


def _mixer(weights):
    return mapped("HGRN2Attention", weights, {"hidden_size": 8, "expand_ratio": 4})[1]


# theirs has an epsilon of 1e-5, behind a division by the root of d_head
FIXED = {"q_activation": "silu", "v_activation": "identity", "bias": False, "norm": "rms"}
FIXED |= {"d_head": 4, "norm_eps": 4e-5}


def _model():
    return model_against_numbers("hgrn2", FIXED, _mixer)


MODEL = "flash-linear-attention 0.6.0, HGRN2Model"
CASES = [
    *fla_cases(
        *("hgrn2", "HGRN2Attention"),
        {
            "default": ("default but for the sizes", {}),
            "convolution": (
                "use_short_conv, conv_bias",
                {"use_short_conv": True, "conv_bias": True},
            ),
        },
        expand_ratio=4,
    ),
    Case("hgrn2", MODEL, "default but for the sizes (use_lower_bound)", "model", _model, 1e-9),
]
