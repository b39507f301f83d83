"""Preconditioned Gated DeltaNet and the layer of flash-linear-attention."""

from linrnn.mixers import PreconditionedGatedDelta
from published.gated_delta_net import RATES, fla_cases, of_fla

PRECONDITIONER = {
    "A_log_atk": "preconditioner.decay.A_log",
    "dt_bias_atk": "preconditioner.decay.dt_bias",
    "b_atk_proj.weight": "preconditioner.rate.weight",
    "log_atk_scale": "preconditioner.m",
}


def _mapped(weights):
    decay = {"a_atk_proj.weight": "preconditioner.decay.proj.weight"}
    return of_fla(weights, RATES | PRECONDITIONER | decay)


CASES = fla_cases(
    *("preconditioned_gated_delta", "PrecondGatedDeltaNet", PreconditionedGatedDelta, _mapped),
    {
        "default": ("default but for the sizes", {"n_heads": 2}),
        "shared keys": (
            "num_v_heads=2 num_heads, squash_x=2, allow_neg_eigval, conv_bias",
            {
                **{"n_heads": 4, "key_heads": 2, "squash": 2.0, "beta_max": 2.0},
                "conv_bias": True,
            },
        ),
        "neither": (
            "no gate and no convolution",
            {"n_heads": 2, "gate": "none", "d_conv": None},
        ),
    },
)
