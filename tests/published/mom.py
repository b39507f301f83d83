"""Mixture of memories and the layer of flash-linear-attention, whose sort is made stable.

Theirs as it is mixes up the steps that a memory is sent, from 17 entries on.
"""

import torch

from linrnn.mixers import MoM
from published.gated_delta_net import fla_cases, of_fla


def _mapped(weights):
    """Theirs has a map for each memory, and for the one that all steps share."""

    def stacked(letter):
        own = [weights[name] for name in weights if name.startswith(f"{letter}_proj.")]
        shared = f"shared_{letter}.weight"
        return torch.cat([*own, *([weights[shared]] if shared in weights else [])])

    q, k, v = weights["q_proj.weight"], stacked("k"), stacked("v")
    ours = of_fla(
        {"k_proj.weight": k, "v_proj.weight": v, **weights},
        {"gate.weight": "router.weight", "A_log": "decay.A_log", "dt_bias": "decay.dt_bias"},
    )
    del ours["qkv.heads.proj.weight"]
    renamed = {name.removeprefix("qkv."): weight for name, weight in ours.items()}
    return {
        **renamed,
        "heads.proj.weight": torch.cat([q, k, v, stacked("b")]),
        "decay.proj.weight": stacked("a"),
    }


CASES = fla_cases(
    *("mom", "MomAttention", MoM, _mapped),
    {
        "default": (
            "default but for the sizes, num_memories=3",
            {"n_heads": 2, "memories": 3},
        ),
        "shared": (
            "num_memories=4, shared_mem, conv_bias",
            {"n_heads": 2, "memories": 4, "shared": True, "conv_bias": True},
        ),
        "one map": (
            "num_memories=4, shared_mem, single_kv_proj, no gate",
            {**{"n_heads": 2, "memories": 4, "shared": True}, "own_maps": False, "gate": "none"},
        ),
    },
)
