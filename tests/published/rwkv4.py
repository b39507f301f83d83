"""RWKV-4 and transformers' RwkvSelfAttention."""

import torch

from linrnn.mixers import RWKV4
from published.case import Case, compare, copies, fill, waves

NAMES = {"mu_k": "time_mix_key", "mu_v": "time_mix_value", "mu_r": "time_mix_receptance"}


def theirs_of(weights):
    """The names and shapes of transformers, of weights by our names."""
    return {NAMES.get(n, n): w[None, None] if n in NAMES else w for n, w in weights.items()}


def _layer(**sizes):
    from transformers import RwkvConfig
    from transformers.models.rwkv.modeling_rwkv import RwkvSelfAttention

    config = RwkvConfig(hidden_size=6, num_hidden_layers=1, **sizes)
    theirs = RwkvSelfAttention(config).double()
    ours = RWKV4(6, d_state=sizes.get("attention_hidden_size"), dtype=torch.float64)
    fill(list(ours.parameters()))
    leaves = copies(ours)

    def read(x):
        return torch.func.functional_call(theirs, theirs_of(leaves), (x,))[0]

    return compare(ours, read, waves(2, 17, 6), leaves)


# theirs computes the mean in float32 whatever comes
SOURCE = "transformers 5.23, RwkvSelfAttention"
CASES = [
    Case("rwkv4", SOURCE, "default", "layer", _layer, 2e-6),
    Case(
        "rwkv4",
        SOURCE,
        "attention_hidden_size=10",
        "layer",
        lambda: _layer(attention_hidden_size=10),
        2e-6,
    ),
]
