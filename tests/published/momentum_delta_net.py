"""Momentum DeltaNet and the layer of flash-linear-attention."""

import torch

from linrnn.mixers import MomentumDeltaNet
from published.gated_delta_net import RATES, fla_cases, of_fla


def _mapped(weights):
    names = {
        "mu_bias": "inertia.dt_bias",
        "m_proj.weight": "inertia.proj.weight",
        "e_proj.weight": "eta_proj.weight",
        "D_log": "D",
    }
    heads = len(weights["mu_bias"])
    shared = {"A_log": "decay.A_log", "Mu_log": "inertia.A_log", "log_factor": "phi"}
    each = {
        name: torch.repeat_interleave(weights[theirs], heads // len(weights[theirs]))
        for theirs, name in shared.items()
    }
    return {**of_fla(weights, RATES | names), **each}


CASES = fla_cases(
    *("momentum_delta_net", "MomentumDeltaNet", MomentumDeltaNet, _mapped),
    {
        "default": ("default but for the sizes", {"n_heads": 2}),
        "shared keys": (
            "num_v_heads=2 num_heads, no use_p_times_alpha, allow_neg_eigval, conv_bias",
            {
                **{"n_heads": 4, "key_heads": 2, "read": "whole", "log_mu_min": None},
                **{"beta_max": 2.0, "conv_bias": True},
            },
        ),
        "neither": (
            "no gate, convolution and output correction",
            {"n_heads": 2, "gate": "none", "d_conv": None, "correction": False},
        ),
    },
)
