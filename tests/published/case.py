"""One comparison of a system with a public implementation of it, and how the numbers are compared.

Each file beside this one, named as a mixer is, lists its comparisons as ``CASES``.
`test_published.py` holds them; `benchmarks/published.py` writes them as a table.
"""

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from linrnn.interop._fla_layers import mapped

FOLDER = Path(__file__).parent
GOLDEN = FOLDER / "golden"
WITHOUT_CASES = ("case", "test_published")

Differences = Mapping[str, float]


class Case(NamedTuple):
    """A configuration of a public implementation, and the same built here.

    ``compare`` returns the largest difference of "forward", "step" and "gradients", each divided by
    the largest magnitude of theirs. It is None where the configuration cannot be built here; the
    reason is ``note``, which also says why one of the three is missing.
    """

    system: str
    implementation: str
    configuration: str
    part: Literal["layer", "model"]
    compare: Callable[[], Differences] | None
    tolerance: float = 1e-5
    note: str = ""


def cases() -> list[Case]:
    """Every comparison, in the order of the systems' names."""
    names = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in WITHOUT_CASES)
    modules = [importlib.import_module(f"published.{name}") for name in names]
    return [case for module in modules for case in module.CASES]


def difference(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, in parts of the largest magnitude of theirs."""
    theirs = theirs.detach().reshape(ours.shape).to(ours.dtype)
    largest = theirs.abs().max().item() or 1.0
    return (ours.detach() - theirs).abs().max().item() / largest


def waves(*shape: int, rate: float = 0.37, dtype: torch.dtype = torch.float64) -> Tensor:
    """``sin(rate i)``, i = 1, 2, ..., in the order of rows: an input that a rule gives."""
    count = torch.Size(shape).numel()
    return torch.sin(rate * torch.arange(1, count + 1, dtype=torch.float64)).to(dtype).view(shape)


@torch.no_grad()
def fill(tensors: Sequence[Tensor], scale: float = 0.5) -> None:
    """Tensor number n, from 1, becomes ``scale sin(i n)``, i = 1, 2, ..., in the order of rows."""
    for n, tensor in enumerate(tensors, 1):
        tensor.copy_(scale * waves(*tensor.shape, rate=n))


def copies(layer: nn.Module) -> dict[str, Tensor]:
    """Copies of our parameters, of which theirs are made: gradients then reach them by our names.

    Theirs reads with ``torch.func.functional_call``; `compare` takes the copies as ``pairs``.
    """
    return {n: p.detach().clone().requires_grad_() for n, p in layer.named_parameters()}


def weighted_gradients(
    y: Tensor, sources: Sequence[Tensor], dtype: torch.dtype | None = None
) -> tuple[Tensor, ...]:
    """Gradients of the sum of all outputs times ``sin(0.71 i)``, which is rounded to ``dtype``."""
    weight = waves(*y.shape, rate=0.71, dtype=y.dtype if dtype is None else dtype)
    return torch.autograd.grad((y * weight.to(y.dtype)).sum(), sources)


def compare(
    layer: nn.Module,
    read: Callable[[Tensor], Tensor],
    x: Tensor,
    pairs: Mapping[str, Tensor | tuple[Tensor, Callable[[Tensor], Tensor]]],
    state: Any = None,
) -> dict[str, float]:
    """Both on one input: all outputs, ours step by step, gradients of a weighted sum of them.

    Args:
        layer: ours, with their weights.
        read: theirs, from the input to the outputs.
        x: (batch, time, channels), or token ids (batch, time).
        pairs: by the name of a parameter of ours, theirs, with a function that lays a gradient out
            as ours where a reshape does not.
        state: where ours begins, if theirs does not begin as ours does.
    """
    mine, other = x.detach().clone(), x.detach().clone()
    real = x.is_floating_point()
    if real:
        for z in (mine, other):
            z.requires_grad_()
    y, expected = layer(mine, state)[0], read(other)
    laid_out = {k: v if isinstance(v, tuple) else (v, nn.Identity()) for k, v in pairs.items()}
    parameters = [layer.get_parameter(name) for name in laid_out]
    sources = ([mine] if real else []) + parameters
    targets = ([other] if real else []) + [theirs for theirs, _ in laid_out.values()]
    grads = weighted_gradients(y, sources)
    wanted = list(weighted_gradients(expected, targets, y.dtype))
    for i, (_, as_ours) in enumerate(laid_out.values(), len(targets) - len(laid_out)):
        wanted[i] = as_ours(wanted[i])
    return {
        "forward": difference(y, expected),
        "step": difference(stepped(layer, x, state), expected),
        "gradients": max(map(difference, grads, wanted)),
    }


Weights = Mapping[str, Tensor]


def compare_mapped(
    layer: nn.Module,
    theirs: nn.Module,
    x: Tensor,
    as_ours: Callable[[Weights], Weights],
    read: Callable[[Tensor], Tensor] | None = None,
) -> dict[str, float]:
    """`compare` where weights of ours are made of several of theirs, as products are.

    The gradients are those of all of their parameters, through ours and through theirs.

    Args:
        layer: ours.
        theirs: with the weights to compare with.
        x: (batch, time, channels).
        as_ours: from parameters of theirs, by name, to those of ours, by name.
        read: theirs, from the input to the outputs. Default: their forward.
    """
    mine, other = (x.detach().clone().requires_grad_() for _ in range(2))
    parameters = dict(theirs.named_parameters())
    expected = (theirs if read is None else read)(other)
    y = _mapped_forward(layer, mine, as_ours(parameters))
    grads = weighted_gradients(y, [mine, *parameters.values()])
    wanted = weighted_gradients(expected, [other, *parameters.values()], y.dtype)
    return {
        "forward": difference(y, expected),
        "step": difference(stepped(layer, x), expected),
        "gradients": max(map(difference, grads, wanted)),
    }


def mapped_against_numbers(
    layer: nn.Module, x: Tensor, as_ours: Callable[[Weights], Weights], numbers: Mapping[str, Any]
) -> dict[str, float]:
    """`compare_mapped` where theirs are numbers, and their parameters by the rule of `fill`.

    Args:
        layer: ours.
        x: (batch, time, channels).
        as_ours: as of `compare_mapped`.
        numbers: "parameters", the shapes of theirs by name, in the order of the rule; "y" and "x",
            the gradient of x, whole; "gradients", of each parameter every ``stride``-th number, in
            the order of rows; "stride".
    """
    shapes, stride = numbers["parameters"], numbers["stride"]
    parameters = {name: torch.empty(shape, dtype=x.dtype) for name, shape in shapes.items()}
    fill(list(parameters.values()))
    sources = [x.detach().clone().requires_grad_(), *parameters.values()]
    y = _mapped_forward(
        layer, sources[0], as_ours({n: p.requires_grad_() for n, p in parameters.items()})
    )
    grads = weighted_gradients(y, sources)
    wanted = [torch.tensor(numbers["gradients"][name], dtype=x.dtype) for name in parameters]
    samples = [grads[0].flatten(), *(grad.flatten()[::stride] for grad in grads[1:])]
    expected = torch.tensor(numbers["y"], dtype=x.dtype)
    return {
        "forward": difference(y.flatten(), expected),
        "step": difference(stepped(layer, x).flatten(), expected),
        "gradients": max(
            map(difference, samples, [torch.tensor(numbers["x"], dtype=x.dtype), *wanted])
        ),
    }


def _mapped_forward(layer: nn.Module, x: Tensor, weights: Weights) -> Tensor:
    """Outputs of a layer as a function of these weights, which it has from now on too."""
    layer.load_state_dict({name: weight.detach() for name, weight in weights.items()})
    y: Tensor = torch.func.functional_call(layer, dict(weights), (x,))[0]
    return y


@torch.no_grad()
def stepped(layer: Any, x: Tensor, state: Any = None) -> Tensor:
    """The outputs of one step after another."""
    state, outputs = layer.init_state(len(x)) if state is None else state, []
    for x_t in x.unbind(1):
        y_t, state = layer.step(x_t, state)
        outputs.append(y_t)
    return torch.stack(outputs, 1)


def golden(name: str) -> dict[str, Any]:
    """Numbers that another implementation gave once: "from", "rule" and "numbers"."""
    content: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text())
    return content


def against_numbers(
    layer: nn.Module, x: Tensor, numbers: Mapping[str, Any], stride: int = 1
) -> dict[str, float]:
    """`compare` where theirs are numbers: "y", "x" (its gradient), and gradients by our names.

    Of each tensor the file has every ``stride``-th number, in the order of rows.
    """
    x = x.detach().clone().requires_grad_()
    y = layer(x)[0]
    names = [name for name in numbers if name not in ("x", "y")]

    def apart(tensor: Tensor, name: str) -> float:
        sample = tensor.detach().flatten()[::stride]
        return difference(sample, torch.tensor(numbers[name], dtype=torch.float64))

    differences = {"forward": apart(y, "y"), "step": apart(stepped(layer, x), "y")}
    if "x" not in numbers:  # their gradients are others, as the note of the case says
        return differences
    sources = [x, *(layer.get_parameter(name) for name in names)]
    grads = weighted_gradients(y, sources)
    return {**differences, "gradients": max(map(apart, grads, ["x", *names]))}


def golden_cases(
    system: str,
    implementation: str,
    layers: Mapping[str, Callable[[], nn.Module]],
    tolerance: float = 1e-9,
    notes: Mapping[str, str] | None = None,
) -> list[Case]:
    """Layers by configuration, with the weights that golden/SYSTEM.json is of, on `x_of` each."""
    notes = notes or {}

    def measure(configuration: str) -> Differences:
        content, layer = golden(system), layers[configuration]()
        numbers = content["numbers"][configuration]
        return against_numbers(layer, x_of(layer), numbers, content["stride"])

    return [
        Case(
            system,
            implementation,
            name,
            "layer",
            partial(measure, name),
            tolerance,
            notes.get(name, ""),
        )
        for name in layers
    ]


def x_of(layer: Any) -> Tensor:
    """The input of their layer for golden numbers: (2, 11, d_model)."""
    return waves(2, 11, layer.d_model)


def fla_cases(
    system: str,
    cls: str,
    configurations: Mapping[str, tuple[str, dict[str, Any]]],
    width: int = 8,
    **shared: Any,
) -> list[Case]:
    """Layers of flash-linear-attention on golden numbers, by the maps of `linrnn.interop.fla`.

    Args:
        system: the name of the mixer, and of the file of golden numbers.
        cls: theirs.
        configurations: by the keys of the file, what its case is called, and arguments of theirs.
        width: their hidden_size.
        shared: further arguments that all configurations have.
    """

    def measure(key: str) -> Differences:
        config = {"hidden_size": width, **shared, **configurations[key][1]}
        numbers = golden(system)["numbers"][key]
        shapes = numbers["parameters"].items()
        empty = {name: torch.empty(shape, dtype=torch.float64) for name, shape in shapes}
        layer, _ = mapped(cls, empty, config)
        return mapped_against_numbers(
            layer, waves(1, 9, width), lambda weights: mapped(cls, weights, config)[1], numbers
        )

    return [
        Case(
            *(system, f"flash-linear-attention 0.6.0, {cls}", words, "layer"),
            *(partial(measure, key), 1e-9),
        )
        for key, (words, _) in configurations.items()
    ]


class Normed(nn.Module):
    """``x + mixer(norm(x))``: theirs often is the layer with its norm and residual."""

    def __init__(self, mixer: Any) -> None:
        super().__init__()
        dtype = next(mixer.parameters()).dtype
        self.d_model = mixer.d_model
        self.mixer, self.norm = mixer, nn.LayerNorm(mixer.d_model, dtype=dtype)

    def reset_parameters(self) -> None:
        for part in (self.mixer, self.norm):
            part.reset_parameters()

    def init_state(self, batch_size: int) -> Any:
        return self.mixer.init_state(batch_size)

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        y, state = self.mixer(self.norm(x), state)
        return x + y, state

    def step(self, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        y_t, state = self.mixer.step(self.norm(x_t), state)
        return x_t + y_t, state
