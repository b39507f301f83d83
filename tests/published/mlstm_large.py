"""The mLSTM of xLSTM 7B and transformers' xLSTMLayer, whose names of weights are the same."""

import torch

from linrnn.mixers import MLSTMLarge
from published.case import Case, compare, fill, waves


def _default():
    from transformers.models.xlstm.modeling_xlstm import xLSTMConfig, xLSTMLayer

    sizes = {"hidden_size": 16, "num_heads": 2, "chunk_size": 16}
    config = xLSTMConfig(**sizes, autocast_kernel_dtype="float32", mode="inference")
    theirs = xLSTMLayer(config)
    fill(list(theirs.parameters()))
    with torch.no_grad():
        theirs.multihead_norm.weight.add_(1)
    ours = MLSTMLarge(16, n_heads=2, d_key=4, d_value=8)
    ours.load_state_dict(theirs.state_dict())
    pairs = dict(theirs.named_parameters())
    return compare(ours, lambda x: theirs(x)[0], waves(2, 37, 16).float(), pairs)


SOURCE = "transformers 5.23, xLSTMLayer"
CASES = [Case("mlstm_large", SOURCE, "default but for the sizes", "layer", _default, 1e-4)]
