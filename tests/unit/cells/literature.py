"""Cells of the literature, each with how to draw its arguments."""

import torch
import torch.nn.functional as F

from linrnn.cells import Cell, block_linear, fold, spread


def _mingru(h, a, z):
    h = h + torch.sigmoid(z) * (a - h)
    return h, h


def _slstm(c, n, m, i, f, z, o):
    lf = F.logsigmoid(f) + m
    m1 = torch.maximum(lf, i)
    fg, ig = torch.exp(lf - m1), torch.exp(i - m1)
    c, n = fg * c + ig * torch.tanh(z), fg * n + ig
    return torch.sigmoid(o) * c / n, (c, n, m1)


def _indrnn(h, x, u):
    h = torch.relu(x + u * h)
    return h, h


def _sru(c, x, f, r, vf, vr):
    gate, read = torch.sigmoid(f + vf * c), torch.sigmoid(r + vr * c)
    c = gate * c + (1 - gate) * x
    return read * torch.tanh(c) + (1 - read) * x, c


def _unicornn(y, z, u, w, rate, alpha):
    dt = 0.1 * torch.sigmoid(rate)
    z = z - dt * (torch.tanh(w * y + u) + alpha * y)
    y = y + dt * z
    return y, (y, z)


def _cornn(y, z, u, gamma, eps, W, V):
    z = z + 0.1 * (torch.tanh(F.linear(y, W) + F.linear(z, V) + u) - gamma * y - eps * z)
    y = y + 0.1 * z
    return y, (y, z)


def _gru(h, xr, xz, xn, bn, Wr, Wz, Wn):
    r, z = torch.sigmoid(xr + h @ Wr), torch.sigmoid(xz + F.linear(h, Wz))
    n = torch.tanh(xn + r * F.linear(h, Wn, bn))
    h = (1 - z) * n + z * h
    return h, h


def _lem(y, z, x1, x2, xz, xy, W1, W2, Wz, Wy):
    d1, d2 = torch.sigmoid(x1 + F.linear(y, W1)), torch.sigmoid(x2 + F.linear(y, W2))
    z = z + d2 * (torch.tanh(xz + F.linear(y, Wz)) - z)
    y = y + d1 * (torch.tanh(xy + F.linear(z, Wy)) - y)
    return y, (y, z)


def _heads(h, x, R):
    h = torch.tanh(x + block_linear(h, R) - block_linear(x * h, R.mT))
    return h * h, h


def _synapses(v, u, mu, w):
    pairs = torch.sigmoid(spread(v, 3, each=True) - spread(mu * u, 3))
    v = torch.tanh(u - fold(pairs, 3, each=True) * v + fold(spread(w, 3) * pairs * pairs, 3))
    return w * v, v


def _ring(h, x, p):
    h = torch.tanh(x + p * torch.roll(h, 1, -1) - torch.roll(h * x, -3, -1))
    return torch.roll(h, (2,), (-1,)), h


def _rg_lru(h, x, r, i, decay):
    log_a = -8 * F.softplus(decay) * torch.sigmoid(r)
    h = torch.exp(log_a) * h + torch.sqrt(-torch.expm1(2 * log_a)) * torch.sigmoid(i) * x
    return h, h


def _lru(h, u, decay):
    h = decay * h + u
    return h.real, h


def _mirrored(h, u, decay):
    h = decay * h.conj() + u
    return torch.abs(h), h


def _modrelu(h, u, decay, bias):
    h = decay * h + u
    h = h * (torch.relu(torch.abs(h) + bias) / (torch.abs(h) + 1))
    return (h.real * h.imag, h), h


def _cascade(fast, slow, x, a, b):
    fast = a * fast + x
    slow = b * slow + torch.sin(fast)
    return fast * slow, (fast, slow)


def _oscillator(y, z, w):
    z = z - w * y
    return (y, z), (y + w * z, z)


CELLS = {
    "mingru": Cell(_mingru, state="h", start=0.5),
    "slstm": Cell(_slstm, state="c n m", start={"n": 1.0}),
    "indrnn": Cell(_indrnn, state="h", constant="u"),
    "sru": Cell(_sru, state="c", constant="vf vr"),
    "unicornn": Cell(_unicornn, state="y z", constant="w rate alpha"),
    "cornn": Cell(_cornn, state="y z", constant="gamma eps", matrix="W V"),
    "gru": Cell(_gru, state="h", constant="bn", matrix="Wr Wz Wn"),
    "lem": Cell(_lem, state="y z", matrix="W1 W2 Wz Wy"),
    "heads": Cell(_heads, state="h", matrix="R"),
    "synapses": Cell(_synapses, state="v", constant="mu w"),
    "ring": Cell(_ring, state="h", constant="p"),
    "rg_lru": Cell(_rg_lru, state="h", constant="decay"),
    "lru": Cell(_lru, state="h", constant="decay", complex="h u decay"),
    "modrelu": Cell(_modrelu, state="h", constant="decay bias", complex="h u decay"),
    "mirrored": Cell(_mirrored, state="h", constant="decay", complex="h u decay"),
    "cascade": Cell(_cascade, state="fast slow", constant="a b"),
    "oscillator": Cell(_oscillator, state="y z", constant="w"),
}


def draw(cell, batch=2, time=6, channels=4, *, seed=0, sequences=None):
    """Arguments in double precision: those of the cell by name, and its states as a tuple."""
    generator = torch.Generator().manual_seed(seed)

    def randn(name, *shape):
        dtype = torch.complex128 if name in cell.is_complex else torch.float64
        return torch.randn(shape, dtype=dtype, generator=generator) / 2

    given = {name: randn(name, batch, time, channels) for name in cell.inputs}
    given |= {name: randn(name, channels) for name in cell.constants}
    for name in cell.matrices:
        heads = name == "R"
        shape = (2, channels // 2, channels // 2) if heads else (channels, channels)
        given[name] = randn(name, *shape)
    rows = batch if sequences is None else sequences
    state = tuple(randn(name, rows, channels) for name in cell.states)
    return given, state
