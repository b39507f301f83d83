"""RG-LRU and the recurrent block of transformers' RecurrentGemma."""

import torch

from linrnn.mixers import RGLRU
from published.case import Case, compare, fill, waves


def _default():
    from transformers.models.recurrent_gemma import modeling_recurrent_gemma as module

    config = module.RecurrentGemmaConfig(hidden_size=6, lru_width=6, num_attention_heads=3)
    theirs = module.RecurrentGemmaRecurrentBlock(config, 0)
    fill(list(theirs.parameters()))
    ours = RGLRU(6, n_heads=3)
    linears = {"y_proj": theirs.linear_y, "x_proj": theirs.linear_x, "out_proj": theirs.linear_out}
    pairs = {f"{n}.{k}": getattr(m, k) for n, m in linears.items() for k in ("weight", "bias")}
    unit = theirs.rg_lru
    pairs |= {"conv1d.weight": theirs.conv_1d.weight, "conv1d.bias": theirs.conv_1d.bias}
    pairs |= {"i_gate.weight": unit.input_gate_weight, "i_gate.bias": unit.input_gate_bias}
    pairs |= {"r_gate.weight": unit.recurrent_gate_weight, "r_gate.bias": unit.recurrent_gate_bias}
    pairs["Lambda"] = unit.recurrent_param
    ours.load_state_dict({n: w.reshape(ours.get_parameter(n).shape) for n, w in pairs.items()})

    def read(x):
        positions = torch.arange(x.shape[1]).expand(len(x), -1)
        return theirs(x, positions, None, use_cache=False)[0]

    return compare(ours, read, waves(2, 17, 6).float(), pairs)


SOURCE = "transformers 5.23, RecurrentGemmaRecurrentBlock"
SIZES = "default but for the sizes"
CASES = [Case("rg_lru", SOURCE, SIZES, "layer", _default, 2e-5)]
