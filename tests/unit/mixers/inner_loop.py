"""TTT row by row: every row has weights of its own, and autograd finds every gradient."""

import torch
import torch.nn.functional as F

from linrnn.nn import rotate


def normed(layer, z):
    z = F.layer_norm(z, z.shape[-1:], eps=1e-6)
    return z * layer.inner_gain + layer.inner_bias


def perceptron(weights, z):
    """``z W + b`` of each head, with GELU between two such."""
    for i in range(0, len(weights), 2):
        z = torch.einsum("hi,hio->ho", z, weights[i]) + weights[i + 1]
        z = F.gelu(z, approximate="tanh") if i + 2 < len(weights) else z
    return z


def transcription(layer, x):
    """The outputs (time, d_model) of one sequence."""
    n, heads = layer.mini_batch, layer.n_heads
    q, k, v = layer.in_proj(x).unflatten(-1, (3, heads, -1)).unbind(1)
    place = torch.arange(len(x))[None] % n
    q, k = (rotate(z[None], place, layer.rotary_base)[0] for z in (q, k))
    rates = layer.base_rate / layer.d_head * layer.rate_proj(x).sigmoid()
    start, outputs = list(layer.memory.parameters()), []
    for t in range(len(x)):
        j = t % n
        if j == 0 and t > 0:
            start = now
        total = [0 * w for w in start] if j == 0 else total
        gap = normed(layer, perceptron(start, k[t])) - (v[t] - k[t])
        gradients = torch.autograd.grad(gap.square().sum() / 2, start, create_graph=True)
        total = [
            s + (rates[t].view(-1, *[1] * (g.ndim - 1)) * g)
            for s, g in zip(total, gradients, strict=True)
        ]
        gain = (1 / (j + 1) + layer.row_rate[j]).clamp(min=0)
        now = [w - gain * s for w, s in zip(start, total, strict=True)]
        o = (q[t] + normed(layer, perceptron(now, q[t]))).flatten()
        o = F.layer_norm(o, o.shape, layer.norm.weight, layer.norm_bias, 1e-6)
        if layer.gate_proj is not None:
            o = F.gelu(layer.gate_proj(x[t]), approximate="tanh") * o
        outputs.append(layer.out_proj(o))
    return torch.stack(outputs)
