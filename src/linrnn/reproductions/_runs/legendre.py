"""Mackey-Glass as the public code of the Legendre memory unit has it: data, models, training."""

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from math import sqrt
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn import RNN
from linrnn._files.storage import read_json, write_atomically
from linrnn.compare.run_table import Run
from linrnn.compare.tune import safe_name
from linrnn.mixers.lmu import lmu, lmu_system
from linrnn.nn.lti import LTISteps, rows_of
from linrnn.ops import cell_scan
from linrnn.reproductions._page.base import Setting
from linrnn.reproductions._page.runs import RUNS, slug
from linrnn.tasks.mackey_glass import series_one_by_one

LMU, LSTM, HYBRID = "LMU, 4 layers of 49", "LSTM, 4 layers of 25", "LMU and LSTM in turn"
ROWS: Mapping[str, tuple[tuple[str, int], ...]] = {
    LMU: (("lmu", 49),) * 4,
    LSTM: (("lstm", 25),) * 4,
    HYBRID: (("lmu", 40), ("lstm", 25)) * 2,
}
"""Kind and width of each layer, from below."""
ORDER, THETA = 4, 4.0
_UNIFORM = 0.05
RATE, EPSILON = 1e-3, 1e-7
PART = "as published"
EVERY = 10
"""Updates between two points of a curve."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is computed; the defaults are the published numbers."""

    length: int = 5_000
    ahead: int = 15
    train: int = 32
    validation: int = 32
    test: int = 64
    updates: int = 500


class LegendreLayer(nn.Module):
    """``h_t = tanh(W_x x_t + W_h h_{t-1} + W_m m_t + b)`` around a memory of 4 coefficients.

    The memory is that of `linrnn.mixers.LMU`, and so is the step. The mixer has as many inputs as
    outputs, and no b.

    Args:
        d_input: channels of x.
        d_state: channels of h.
    """

    def __init__(self, d_input: int, d_state: int) -> None:
        super().__init__()
        self.memory = LTISteps(lambda: lmu_system(ORDER), 1 / THETA, "zoh")
        self.E_x = nn.Parameter(_uniform((1, d_input), sqrt(3 / d_input)))
        self.E_h = nn.Parameter(_uniform((1, d_state), sqrt(3 / d_state)))
        self.E_m = nn.Parameter(torch.zeros(1, ORDER))
        self.W_x = nn.Parameter(_truncated_normal(d_state, d_input))
        self.W_h = nn.Parameter(_uniform((d_state, d_state), _UNIFORM))
        self.W_m = nn.Parameter(_truncated_normal(d_state, ORDER))
        self.bias = nn.Parameter(torch.zeros(d_state))

    def forward(self, x: Tensor) -> Tensor:
        """Read x (batch, time, d_input) from a state of 0; h is (batch, time, d_state)."""
        a, b = self.memory()  # (order, order), (order,)
        h, m = x.new_zeros(len(x), len(self.bias)), x.new_zeros(len(x), ORDER)
        inputs: dict[str, Any] = {"w": F.linear(x, self.E_x), **rows_of(1, a, b)}
        inputs |= {"u": F.linear(x, self.W_x, self.bias), "W_h": self.W_h, "W_m": self.W_m}
        inputs |= {"e_h": self.E_h, "e_m": self.E_m}
        y, _ = cell_scan(lmu, **inputs, state=(h, m))
        outputs: Tensor = y
        return outputs


class LSTMLayer(nn.Module):
    """`linrnn.RNN("lstm")` with the initial weights of Keras.

    Input weights are Glorot-uniform over all gates together, recurrent ones have orthonormal rows
    over all gates together, and the one bias is 1 for the forget gate and 0 elsewhere.

    Args:
        d_input: channels of x.
        d_state: channels of h and of c.
    """

    def __init__(self, d_input: int, d_state: int) -> None:
        super().__init__()
        self.rnn = RNN("lstm", d_input, d_state, batch_first=True)
        weights = dict(self.rnn.named_parameters())
        with torch.no_grad():
            for name, weight in weights.items():
                nn.init.zeros_(weight)
                if "weight_ih" in name:
                    nn.init.xavier_uniform_(weight)
                elif "weight_hh" in name:
                    nn.init.orthogonal_(weight)
                elif "bias_ih" in name:
                    weight[d_state : 2 * d_state] = 1.0
                else:
                    weight.requires_grad_(False)  # the second of two biases, which Keras lacks

    def forward(self, x: Tensor) -> Tensor:
        """Read x (batch, time, d_input) from a state of 0; h is (batch, time, d_state)."""
        outputs: Tensor = self.rnn(x)[0]
        return outputs


def read_out(d_input: int, d_output: int) -> nn.Linear:
    """A linear map with the initial weights of Keras: Glorot-uniform, and no bias."""
    head = nn.Linear(d_input, d_output)
    nn.init.xavier_uniform_(head.weight)
    nn.init.zeros_(head.bias)
    return head


class Stack(nn.Module):
    """Layers one above the other, and a linear map to one number.

    Where the last layer is an LSTM the number goes through a tanh, as in the public code.

    Args:
        layers: kind and width of each, from below.
    """

    def __init__(self, layers: tuple[tuple[str, int], ...]) -> None:
        super().__init__()
        kinds = {"lmu": LegendreLayer, "lstm": LSTMLayer}
        widths = [1, *(width for _, width in layers)]
        self.layers = nn.Sequential(
            *(kinds[kind](widths[i], width) for i, (kind, width) in enumerate(layers))
        )
        self.head = read_out(widths[-1], 1)
        self.bounded = layers[-1][0] == "lstm"

    def forward(self, x: Tensor) -> Tensor:
        """Answers (batch, time, 1) to values of the same shape."""
        answers: Tensor = self.head(self.layers(x))
        return answers.tanh() if self.bounded else answers


@cache
def data(size: Size) -> tuple[tuple[Tensor, Tensor], ...]:
    """Values and those to predict of training, validation and test, (sequences, time, 1) each.

    All come from one seed, as published; the mean of all of them is taken away.
    """
    counts = [size.train, size.validation, size.test]
    values = series_one_by_one(sum(counts), size.length + size.ahead, seed=0)
    x = torch.from_numpy(values - values.mean()).float()[..., None]  # (sequences, time, 1)
    pairs = x[:, : size.length], x[:, size.ahead :]
    train, validation, test = zip(*(part.split(counts) for part in pairs), strict=True)
    return train, validation, test


def trained(label: str, seed: int, size: Size, setting: Setting) -> tuple[Run, list[float]]:
    """Train a row with a seed, or read what an earlier call left in the folder.

    Adam takes one step for the gradient of all training sequences. The weights with the smallest
    error on validation, which is computed after each step, answer the test.

    Returns:
        The run, and the errors on validation of every `EVERY`-th step.
    """
    path = setting.out / RUNS / f"{safe_name(label)}-seed{seed}.json"
    result = stored(path, lambda: _train(label, seed, size))
    run = Run(
        scale=setting.scale,
        part=slug(PART),
        row=safe_name(label),
        seed=seed,
        lr=RATE,
        task="mackey_glass",
        mixer="-".join(dict.fromkeys(kind for kind, _ in ROWS[label])),
        steps=size.updates,
        metric="nrmse",
        chance=1.0,
        **{name: value for name, value in result.items() if name != "curve"},
    )
    return run, result["curve"]


def stored(path: Path, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The numbers in a file of JSON, which are computed first where there is none."""
    if not path.is_file():
        write_atomically(path, json.dumps(compute()).encode())
    numbers: dict[str, Any] = read_json(path, inside=path.parent)
    return numbers


def _train(label: str, seed: int, size: Size) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = Stack(ROWS[label])
    learned = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(learned, RATE, eps=EPSILON)
    (x, target), validation, test = data(size)
    best, weights, curve, start = float("inf"), {}, [], perf_counter()
    for update in range(1, size.updates + 1):
        optimizer.zero_grad()
        F.mse_loss(model(x), target).backward()
        optimizer.step()
        error = nrmse(model, *validation)
        if error < best:
            best, weights = error, copy.deepcopy(model.state_dict())
        if update % EVERY == 0:
            curve.append(error)
    model.load_state_dict(weights)
    error = nrmse(model, *test)
    return {
        "parameters": sum(p.numel() for p in learned),
        "validation": best,
        "test": error,
        "test_loss": error**2 * float(test[1].square().mean()),
        "seconds": round(perf_counter() - start, 1),
        "versions": f"torch {torch.__version__} numpy {np.__version__}",
        "curve": curve,
    }


@torch.no_grad()
def nrmse(model: nn.Module, x: Tensor, target: Tensor) -> float:
    """The root of the mean squared error over that of the targets."""
    squares = sum(
        float((model(part) - target[i : i + len(part)]).double().square().sum())
        for i, part in zip(range(0, len(x), 32), x.split(32), strict=True)
    )
    return sqrt(squares / float(target.double().square().sum()))


def _uniform(shape: tuple[int, ...], limit: float) -> Tensor:
    return torch.empty(shape).uniform_(-limit, limit)


def _truncated_normal(d_state: int, d_input: int) -> Tensor:
    """Glorot's normal numbers as Keras draws them: within two deviations, of the same variance."""
    deviation = sqrt(2 / (d_state + d_input)) / 0.87962566103423978  # that of the truncated normal
    weight = torch.empty(d_state, d_input)
    nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)
    return weight
