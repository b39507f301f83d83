"""RWKV-7 and the layers of the package rwkv, the first of a stack and a later one; its model."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from torch import nn

from linrnn.mixers import RWKV7
from published.case import Case, compare, copies, difference, fill, stepped, waves
from rwkv_package import load

WIDTH, HEADS, VOCABULARY, DEPTH = 8, 2, 13, 3
RANKS = {"decay_rank": 3, "rate_rank": 5, "gate_rank": 4, "value_rank": 2}


class _Stack(nn.Module):
    """Two layers with what the first hands the second, which theirs are given one after another."""

    def __init__(self):
        super().__init__()
        sizes = {"n_heads": HEADS, "n_layers": 2, **RANKS, "dtype": torch.float64}
        self.first = RWKV7(WIDTH, **sizes)
        self.second = RWKV7(WIDTH, layer=1, receives=("v_first",), **sizes)

    def forward(self, x, state=None):
        states = [None, None] if state is None else state
        y, first, signals = self.first(x, states[0], signals={})
        z, second, _ = self.second(y, states[1], signals=signals)
        return z, [first, second]

    def init_state(self, rows):
        return [layer.init_state(rows) for layer in (self.first, self.second)]

    def step(self, x, state):
        y, first, signals = self.first.step(x, state[0], signals={})
        z, second, _ = self.second.step(y, state[1], signals=signals)
        return z, [first, second]


def theirs_of(weights):
    """Arguments of their function, from weights by our names."""

    def low_rank(name):
        down, up = weights[f"{name}.down.weight"].T, weights[f"{name}.up.weight"].T
        return [*([weights[f"{name}.up.bias"]] if name != "gate" else []), down, up]

    later = low_rank("residual") if "residual.up.bias" in weights else [None] * 3
    names = ("receptance", "key", "value", "output")
    return [
        *weights["mu"],
        *(*low_rank("decay"), *low_rank("rate"), *later, *low_rank("gate")),
        *(weights["k_k"], weights["k_a"], weights["r_k"].flatten()),
        *(weights[f"{name}.weight"].T for name in names),
        *(weights["norm_weight"], weights["norm_bias"]),
    ]


def _layers():
    with pytest.MonkeyPatch.context() as patch:
        one = load(patch, seven=True).RWKV_x070_TMix_one
    ours = _Stack()
    fill(list(ours.parameters()))
    leaves = copies(ours)
    parts = [
        {n.removeprefix(f"{layer}."): w for n, w in leaves.items() if n.startswith(f"{layer}.")}
        for layer in ("first", "second")
    ]
    given = [theirs_of(part) for part in parts]

    def read(x):
        rows = []
        for row in x:
            start = torch.zeros(WIDTH).double(), torch.zeros(HEADS, 4, 4)
            states, outputs = [start, start], []
            for z in row:
                v_first = None
                for i in range(2):
                    shift, memory = states[i]
                    z, *state, v_first = one(*(i, HEADS, 4, z, shift, v_first, memory), *given[i])
                    states[i] = state
                outputs.append(z)
            rows.append(torch.stack(outputs))
        return torch.stack(rows)

    return compare(ours, read, waves(2, 17, WIDTH), leaves)


@torch.no_grad()
def _model():
    from linrnn.interop.hf import LinrnnConfig, LinrnnForCausalLM, to_rwkv_weights

    around = {"norm": "layer", "block": "relu_mix", "encoder_norm": True, "head_bias": False}
    config = LinrnnConfig(
        vocab_size=VOCABULARY,
        mixer="rwkv7",
        mixer_options={"n_heads": HEADS, **RANKS},
        d_model=WIDTH,
        n_layers=DEPTH,
        **around,
    )
    ours = LinrnnForCausalLM(config).eval()
    fill(list(ours.parameters()))
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        place = Path(folder) / "weights"
        torch.save(to_rwkv_weights(ours), f"{place}.pth")
        theirs = load(patch, seven=True).RWKV(str(place), "cpu fp32")
    ids = torch.arange(17) * 5 % VOCABULARY
    expected, _ = theirs.forward(ids.tolist(), None, full_output=True)
    return {
        "forward": difference(ours(ids[None]).logits[0], expected),
        "step": difference(stepped(ours.model, ids[None])[0], expected),
    }


# theirs has exp(-1/2) as 0.606531, and a memory of float32
SOURCE = "rwkv 0.8.32, RWKV_x070"
NOTE = "it has no gradients"
CASES = [
    Case("rwkv7", f"{SOURCE}_TMix_one", "the first layer and a later one", "layer", _layers, 1e-4),
    Case("rwkv7", SOURCE, "a checkpoint of three layers", "model", _model, 1e-5, NOTE),
]
