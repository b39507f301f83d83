"""The recurrent layers of the minimal-RNN paper's timings, with what each takes part in."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from linrnn import mixers
from linrnn.errors import check_in
from linrnn.mixers import Mixer
from linrnn.reproductions._runs.timing import Call


class CellLoop(nn.Module):
    """A cell of `torch.nn` called once a time step from Python: (B, T, D) in and out.

    It is the baseline of papers that time a recurrence without a kernel for it.
    """

    def __init__(self, cell: nn.GRUCell | nn.LSTMCell) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        """All outputs, and the last state."""
        state, ys = None, []
        for x_t in x.unbind(1):
            state = self.cell(x_t, state)
            ys.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(ys, 1), state  # (batch, time, width)


def _ours(name: str, **options: Any) -> Callable[[int], nn.Module]:
    return lambda d_model: mixers.build(name, d_model, options)


LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "minGRU": _ours("mingru"),
    "minGRU, log space": _ours("mingru", form="log"),
    "minLSTM": _ours("minlstm"),
    "minLSTM, log space": _ours("minlstm", form="log"),
    "Mamba": _ours("mamba"),
    "GRU, fused": lambda d: nn.GRU(d, d, batch_first=True),
    "GRU, loop": lambda d: CellLoop(nn.GRUCell(d, d)),
    "LSTM, fused": lambda d: nn.LSTM(d, d, batch_first=True),
    "LSTM, loop": lambda d: CellLoop(nn.LSTMCell(d, d)),
}
#: What each name computes with, for the reader of a table.
KERNELS = (
    "minGRU, minLSTM and Mamba are linrnn's, their recurrence by its kernels for the device (see "
    "`linrnn doctor`); log space is the same numbers by the paper's sum of logarithms. GRU and "
    "LSTM, fused, are torch.nn.GRU and torch.nn.LSTM: cuDNN's kernels on a GPU, PyTorch's own on "
    "a CPU. GRU and LSTM, loop, call torch.nn.GRUCell or LSTMCell once a time step from Python, "
    "eager, not compiled."
)


def build(name: str, d_model: int, device: torch.device) -> nn.Module:
    """A layer by name, d_model channels wide inside and out (Mamba: twice that inside)."""
    check_in("reproductions", "layer", name, LAYERS)
    torch.manual_seed(0)
    return LAYERS[name](d_model).to(device)


def training_step(name: str, d_model: int, batch: int, time: int, device: torch.device) -> Call:
    """Forward, and backward to the input and all parameters; no optimiser."""
    layer = build(name, d_model, device).train()
    x = torch.randn(batch, time, d_model, device=device, requires_grad=True)
    grad = torch.randn(batch, time, d_model, device=device)
    sources = [x, *layer.parameters()]

    def call() -> object:
        return torch.autograd.grad(layer(x)[0], sources, grad)

    return call


def reading(name: str, d_model: int, batch: int, time: int, device: torch.device) -> Call:
    """A whole context at once, without gradients."""
    layer = build(name, d_model, device).eval()
    x = torch.randn(batch, time, d_model, device=device)

    @torch.inference_mode()
    def call() -> object:
        return layer(x)

    return call


def streaming_step(name: str, d_model: int, batch: int, device: torch.device) -> Call:
    """One time step from a carried state, without gradients."""
    layer = build(name, d_model, device).eval()
    x_t = torch.randn(batch, d_model, device=device)
    step, state = _stepper(layer, batch)

    @torch.inference_mode()
    def call() -> object:
        nonlocal state
        y, state = step(x_t, state)
        return y

    return call


def _stepper(layer: nn.Module, batch: int) -> tuple[Callable[[Tensor, Any], tuple[Any, Any]], Any]:
    """Return a function ``step(x_t, state) -> (y_t, state)``, and the first state."""
    if isinstance(layer, Mixer):
        return layer.step, layer.init_state(batch)
    if isinstance(layer, CellLoop):
        return (lambda x_t, state: (None, layer.cell(x_t, state))), None
    return (lambda x_t, state: layer(x_t[:, None], state)), None
