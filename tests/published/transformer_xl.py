"""Transformer-XL and the relative attention of transformers' XLNet, segment by segment."""

import torch

from linrnn.mixers import TransformerXL
from published.case import Case, compare, copies, fill, waves


def theirs_of(weights, width, heads, size):
    """The names and shapes of transformers, of weights by our names."""
    q, k, v = weights["heads.proj.weight"].mT.view(width, 3, heads, size).unbind(1)
    o = weights["o_proj.weight"].view(width, heads, size)
    r = weights["place.proj.weight"].mT.view(width, heads, size)
    biases = {"r_w_bias": weights["place.u"], "r_r_bias": weights["place.w"]}
    return {"q": q, "k": k, "v": v, "o": o, "r": r, **biases}


def _default():
    from transformers.models.xlnet import modeling_xlnet as module

    D, H, segment, memory = 8, 2, 5, 4
    config = module.XLNetConfig(d_model=D, n_head=H, n_layer=1, d_inner=4, dropout=0.0)
    theirs = module.XLNetRelativeAttention(config).double()
    theirs.layer_norm = torch.nn.Identity()  # it and the residual are the block's
    ours = TransformerXL(D, n_heads=H, segment=segment, memory=memory, dtype=torch.float64)
    fill(list(ours.parameters()))
    leaves = copies(ours)
    weights = theirs_of(leaves, D, H, D // H)

    def read(x):
        x, outputs = x.transpose(0, 1), []
        for begin in range(0, len(x), segment):
            h, mems = x[begin : begin + segment], x[max(0, begin - memory) : begin]
            klen = len(mems) + len(h)
            angle = torch.arange(klen, -len(h), -1.0, dtype=torch.float64)[:, None]
            angle = angle * 10_000 ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
            r = torch.cat([angle.sin(), angle.cos()], -1)[:, None].expand(-1, h.shape[1], -1)
            later = torch.ones(len(h), klen, dtype=torch.float64).triu(1 + len(mems))
            call = (h, None, later[:, :, None, None], None, r, None, mems)
            outputs.append(torch.func.functional_call(theirs, weights, call)[0] - h)
        return torch.cat(outputs).transpose(0, 1)

    return compare(ours, read, waves(2, 17, D), leaves)


SOURCE = "transformers 5.23, XLNetRelativeAttention"
WHAT = "default but for the sizes, without its norm and residual"
CASES = [Case("transformer_xl", SOURCE, WHAT, "layer", _default, 1e-11)]
