"""Mixture of memories and the layer of flash-linear-attention, whose sort is made stable.

Theirs as it is mixes up the steps that a memory is sent, from 17 entries on.
"""

from published.case import fla_cases

CASES = fla_cases(
    *("mom", "MomAttention"),
    {
        "default": ("default but for the sizes, num_memories=3", {"num_memories": 3}),
        "shared": (
            "num_memories=4, shared_mem, conv_bias",
            {"num_memories": 4, "shared_mem": True, "conv_bias": True},
        ),
        "one map": (
            "num_memories=4, shared_mem, single_kv_proj, no gate",
            {
                "num_memories": 4,
                "shared_mem": True,
                "single_kv_proj": True,
                "use_output_gate": False,
            },
        ),
    },
    **{"head_dim": 4, "num_heads": 2},
)
