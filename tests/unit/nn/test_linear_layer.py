"""The linear map of all layers beside `torch.nn.Linear`: the same but for gradients of weights."""

import ast
import copy
import io
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import linrnn
from linrnn import mixers
from linrnn.block import BLOCKS
from linrnn.nn import CappedLinear, Linear
from linrnn.nn.linear import plain_linear
from linrnn.ops.half_linear import available

needs_tiles = pytest.mark.skipif(not available(), reason="no matrix tiles for bfloat16")
EVERY_MIXER = mixers.names()


def pair(*arguments, **options):
    """The same map by PyTorch's class and by ours."""
    theirs, ours = nn.Linear(*arguments, **options), Linear(*arguments, **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def slopes(layer, x):
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    (y.float() * drawn(*y.shape, seed=3)).sum().backward()
    return layer.weight.grad


def rounded(x):
    return torch.equal(x, x.bfloat16().to(x.dtype))


def test_it_is_drawn_named_and_shown_as_pytorchs():
    for options in ({}, {"bias": False}, {"dtype": torch.float64}):
        torch.manual_seed(0)
        theirs = nn.Linear(5, 3, **options)
        torch.manual_seed(0)
        ours = Linear(5, 3, **options)
        assert repr(ours) == repr(theirs)
        assert ours.state_dict().keys() == theirs.state_dict().keys()
        assert all(map(torch.equal, ours.parameters(), theirs.parameters()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_its_numbers_are_pytorchs(dtype):
    theirs, ours = pair(96, 80, dtype=dtype)
    x = drawn(2, 300, 96).to(dtype)
    assert torch.equal(ours(x), theirs(x))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(ours(x), theirs(x))
        assert torch.equal(ours(input=x), theirs(input=x))


@needs_tiles
@pytest.mark.parametrize("make", [Linear, lambda *sizes: CappedLinear(*sizes, cap=30.0)])
def test_inside_of_autocast_the_gradient_of_its_weight_is_not_rounded(make):
    assert rounded(slopes(nn.Linear(96, 80), drawn(2, 300, 96)))
    assert not rounded(slopes(make(96, 80), drawn(2, 300, 96)))


def test_hooks_and_parametrizations_see_its_calls():
    _, layer = pair(96, 80)
    calls = []
    layer.register_forward_pre_hook(lambda *_: calls.append("before"))
    layer.register_forward_hook(lambda *_: calls.append("after"))
    layer.register_full_backward_hook(lambda *_: calls.append("back"))
    slopes(layer, drawn(2, 300, 96).requires_grad_())
    assert calls == ["before", "after", "back"]
    for parametrize in (parametrizations.spectral_norm, parametrizations.weight_norm):
        torch.manual_seed(0)
        theirs, ours = map(parametrize, pair(96, 80))
        ours.load_state_dict(theirs.state_dict())
        x = drawn(2, 300, 96)
        assert torch.equal(ours(x), theirs(x))
        slope = torch.autograd.grad(ours(x).square().sum(), [*ours.parameters()])
        assert all(g.isfinite().all() and g.any() for g in slope)


def test_it_is_copied_stored_and_put_on_meta():
    _, layer = pair(4, 3)
    stored = io.BytesIO()
    torch.save(layer, stored)
    stored.seek(0)
    for again in (copy.deepcopy(layer), torch.load(stored, weights_only=False)):
        assert type(again) is Linear
        assert torch.equal(again(torch.ones(4)), layer(torch.ones(4)))
    assert Linear(4, 3, device="meta")(torch.ones(2, 4, device="meta")).shape == (2, 3)


def test_transforms_of_torch_func_see_operators():
    _, layer = pair(96, 80)
    weights, x = dict(layer.named_parameters()), drawn(5, 600, 96)

    def loss(weights, x):
        with torch.autocast("cpu", torch.bfloat16):
            return torch.func.functional_call(layer, weights, x).float().square().mean()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, x)
    alone = torch.func.grad(loss)(weights, x[1])
    torch.testing.assert_close(each["weight"][1], alone["weight"], rtol=2**-7, atol=1e-3)


def test_what_is_a_plain_map():
    class Child(Linear):
        pass

    assert plain_linear(nn.Linear(2, 3))
    assert plain_linear(Linear(2, 3))
    assert not plain_linear(Child(2, 3))
    assert not plain_linear(CappedLinear(2, 3, cap=1.0))


@pytest.mark.unchecked
def test_it_compiles_and_exports_without_a_break():
    _, layer = pair(96, 80)
    x = drawn(2, 300, 96)

    def under(layer, x):
        with torch.autocast("cpu", torch.bfloat16):
            return layer(x)

    compiled = torch.compile(under, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(layer, x), under(layer, x))
    compiled(layer, x).float().square().sum().backward()
    assert layer.weight.grad.any()
    exported = torch.export.export(layer, (x,)).module()
    assert torch.equal(exported(x), layer(x))


def maps(module):
    return {name: part for name, part in module.named_modules() if isinstance(part, nn.Linear)}


def others(module):
    """The maps that are PyTorch's own."""
    return [name for name, part in maps(module).items() if type(part) is nn.Linear]


#: Rooms with maps of PyTorch's own: those of models that are solved for, and of peers.
ROOMS_OF_OTHERS = ("frozen", "reproductions")
PACKAGE, THEIRS = Path(linrnn.__file__).parent, ("nn.Linear", "torch.nn.Linear")


def test_no_option_makes_a_map_of_pytorchs_own():
    calls = []
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE)
        if place.parts[0] not in ROOMS_OF_OTHERS:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            named = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
            calls += [
                str(place) for f in named if ast.unparse(f) in ("nn.Linear", "torch.nn.Linear")
            ]
    assert calls == []


@pytest.mark.parametrize("name", EVERY_MIXER)
def test_no_mixer_has_a_map_of_pytorchs_own(name):
    assert others(mixers.build(name, 16, {}, device="meta")) == []


@pytest.mark.parametrize("block", BLOCKS)
def test_nor_has_a_model(block):
    for encoder in ("tokens", "linear"):
        model = linrnn.SequenceModel(3, 2, n_layers=1, block=block, encoder=encoder)
        assert maps(model)
        assert others(model) == []


#: Rows of the sequence below, and numbers of a matrix from which on the kernel pays with so many.
ROWS, NUMBERS = (4, 128), 1 << 13
#: Maps of which a product has few rows, or that a step of a cell multiplies by.
OTHERS = {
    "compressive_transformer": ["fewer.weight"],
    "relu_rnn": ["A"],
    "tanh_rnn": ["A"],
    "tlb": ["own.kv.weight"],
    "transformer_xl": ["place.proj.weight"],
}


def wide_maps(mixer):
    """The matrices of a mixer that the kernel is for, also those in pairs of numbers."""
    for name, weight in mixer.named_parameters():
        sides = [n for n in weight.shape if n != 2]
        if len(sides) == 2 and weight.numel() >= NUMBERS and weight.grad is not None:
            yield name, weight


@needs_tiles
@pytest.mark.parametrize("name", EVERY_MIXER)
def test_no_mixer_learns_by_rounded_gradients_of_its_maps(name):
    torch.manual_seed(0)
    mixer = mixers.build(name, 128, {})
    with torch.autocast("cpu", torch.bfloat16):
        y, _ = mixer(drawn(*ROWS, 128))
    if y.requires_grad:  # as all do but a reservoir
        (y.float() * drawn(*y.shape, seed=1)).sum().backward()
        maps = dict(wide_maps(mixer))
        assert [n for n, w in maps.items() if rounded(w.grad)] == OTHERS.get(name, [])
