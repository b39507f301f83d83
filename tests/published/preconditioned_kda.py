"""Preconditioned KDA and the layer of flash-linear-attention."""

from linrnn.mixers import PreconditionedKDA
from published.gated_delta_net import LOW_RANK, RATES, fla_cases, of_fla
from published.preconditioned_gated_delta import PRECONDITIONER


def _mapped(weights):
    names = RATES | LOW_RANK | PRECONDITIONER
    return of_fla(weights, names | {"a_proj.weight": "preconditioner.decay.proj.weight"})


CASES = fla_cases(
    *("preconditioned_kda", "PrecondKDA", PreconditionedKDA, _mapped),
    {
        "default": ("default but for the sizes", {"n_heads": 2}),
        "bounded": (
            "safe_gate, lower_bound=-5, num_v_heads=2 num_heads, allow_neg_eigval, conv_bias",
            {
                **{"n_heads": 4, "key_heads": 2, "lower_bound": -5.0, "beta_max": 2.0},
                "conv_bias": True,
            },
        ),
        "without convolution": ("use_short_conv=False", {"n_heads": 2, "d_conv": None}),
    },
)
