"""Recorded steps of layers against the same layers read as sequences, and of whole models."""

import contextlib
import copy
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from linrnn import SequenceModel
from linrnn.compute import native as _native
from linrnn.engine.replay import program
from linrnn.errors import ShapeError
from linrnn.mixers import RWKV4, Mamba, load, names
from linrnn.nn import ChannelMix
from linrnn.ops import explain
from linrnn.state import leaves, map_state
from linrnn.testing._mixer_runs import WIDTH, build
from linrnn.testing._options import sizes, texts_and_flags

F32, F64 = torch.float32, torch.float64
TOLERANCE = {F64: {"rtol": 1e-10, "atol": 1e-11}, F32: {"rtol": 1e-4, "atol": 1e-5}}

needs_native = pytest.mark.skipif(
    _native.load()[0] is None, reason=f"no native kernels: {_native.load()[1]}"
)


def lively(layer):
    """Weights at which every part matters: with the initial ones the output is zero."""
    for part in layer.modules():
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=part.in_features**-0.5)
    return layer


def rwkv(width, dtype):
    return lively(RWKV4(width, d_state=2 * width + 1, dtype=dtype))


def bare_rwkv(width, dtype):
    return lively(RWKV4(width, token_shift=False, dtype=dtype))


def channel_mix(width, dtype):
    return lively(ChannelMix(width, d_inner=3 * width + 2, dtype=dtype))


def mamba(width, dtype):
    return Mamba(width, d_state=5, b_disc="zoh", dtype=dtype)


LAYERS = pytest.mark.parametrize("make", [rwkv, bare_rwkv, channel_mix, mamba])


@needs_native
@LAYERS
@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize(("batch", "width"), [(1, 1), (1, 33), (3, 16), (9, 5)])
def test_steps_equal_a_sequence_and_change_no_state(make, dtype, batch, width):
    layer, x, ys = make(width, dtype), torch.randn(batch, 7, width, dtype=dtype), []
    expected, last = layer(x, layer.init_state(batch))
    with torch.no_grad():
        state = layer.init_state(batch)
        for x_t in x.transpose(0, 1):
            before = map_state(torch.clone, state)
            y, after = layer.step(x_t, state)
            assert all(map(torch.equal, leaves(before), leaves(state)))
            ys.append(y)
            state = after
    torch.testing.assert_close(torch.stack(ys, 1), expected.detach(), **TOLERANCE[dtype])
    for got, want in zip(leaves(state), leaves(last), strict=True):
        torch.testing.assert_close(got, want.detach(), **TOLERANCE[dtype])


@needs_native
@LAYERS
def test_steps_of_any_threads_have_the_same_bits(make, monkeypatch):
    layer = make(257, F32)
    x, state = torch.randn(1, 257), layer.init_state(1)
    with torch.no_grad():
        alone = layer.step(x, state)
        monkeypatch.setattr(_native, "threads", lambda: 2)
        both = layer.step(x, state)
    assert all(map(torch.equal, leaves(list(alone)), leaves(list(both))))


@needs_native
@pytest.mark.parametrize("size", [1e4, 1e30])
def test_huge_keys_are_no_overflow(size):
    layer = rwkv(4, F32)
    with torch.no_grad():
        layer.key.weight.mul_(size)
        x = torch.randn(2, 5, 4)
        expected, _ = layer(x)
        state = layer.init_state(2)
        for t in range(5):
            y, state = layer.step(x[:, t], state)
            torch.testing.assert_close(y, expected[:, t], rtol=1e-4, atol=1e-5)


@pytest.fixture
def calls(monkeypatch):
    """One entry for each native call of a recorded step."""
    made, kernel = [], program._KERNEL
    monkeypatch.setattr(program, "_KERNEL", lambda *record: (made.append(1), kernel(*record)))
    return made


@needs_native
@LAYERS
def test_a_layer_alone_is_recorded_where_that_can_be(make, calls):
    layer, x = make(6, F32), torch.randn(2, 6)
    with torch.no_grad():
        y, _ = layer.step(x, layer.init_state(2))
        assert calls
        wide = torch.randn(2, 12)[:, ::2]
        state = layer(torch.randn(2, 9, 6), layer.init_state(2))[1]
        apart = map_state(lambda h: h.expand(3, *h.shape).movedim(0, -1)[..., 0], state)
        calls.clear()
        torch.testing.assert_close(layer.step(wide, apart), layer.step(wide.clone(), state))
        assert len(calls) == 2
        nn.utils.parametrizations.weight_norm(layer.out_proj if make is mamba else layer.value)
        again, _ = layer.step(x, layer.init_state(2))
    torch.testing.assert_close(again, y)
    calls.clear()
    layer.step(x.requires_grad_(), layer.init_state(2))[0].sum().backward()
    assert x.grad is not None
    assert not calls


@pytest.mark.sampled
@needs_native
@pytest.mark.parametrize("name", names())
def test_the_first_steps_of_every_layer_are_those_of_its_operators(name):
    torch.manual_seed(0)
    layer = load(name)(WIDTH, **load(name).in_laws).eval()
    state = plain = layer.init_state(2)
    for _ in range(3):
        x = torch.randn(2, WIDTH)
        with torch.no_grad():
            y, state = layer.step(x, state)
            z, plain = layer._step_by_operators(x, plain)
        torch.testing.assert_close(y, z, rtol=1e-4, atol=1e-5)
    if "constant_memory" in layer.declared:
        assert "another size" in explain(layer.step, x, state)


def model_of(mixer, norm="layer", batch=2, dtype=F32, dropout=0.0, **options):
    """A language model all of whose layers have kernels, its state, and a token for each row."""
    block = "channel_mix" if mixer == "rwkv4" else "bare"
    model = SequenceModel(
        *(11, 11),
        **{"mixer": mixer, "d_model": 12, "n_layers": 3, "block": block, "norm": norm},
        **{"pool": "none", "encoder": "tokens", "final_norm": True, "dropout": dropout},
        **options,
    ).eval()
    for p in model.parameters():
        if p.ndim > 1:
            nn.init.normal_(p, std=0.4)
    ids = torch.randint(11, (batch, 9))
    with torch.no_grad():
        state = model.to(dtype)(ids[:, :4])[1]
    return model, state, ids[:, 4]


MIXERS = pytest.mark.parametrize("mixer", ["rwkv4", "mamba"])


@contextlib.contextmanager
def without_kernels(model):
    """A hook that wants to see everything."""
    handle = model.blocks[0].norm.register_forward_hook(lambda *_: None)
    yield
    handle.remove()


def both(model, token, state):
    """A step in one native call and operator by operator."""
    with torch.no_grad():
        native = model.step(token, state)
        with without_kernels(model):
            return native, model.step(token, state)


def assert_same_step(model, token, state, calls=None):
    native, other = both(model, token, state)
    size = other[0].abs().max()
    tolerance = {F64: 1e-12, F32: 1e-5, torch.bfloat16: 0.06}[native[0].dtype]
    torch.testing.assert_close(native[0] / size, other[0] / size, rtol=0, atol=tolerance)
    for got, want in zip(leaves(native[1]), leaves(other[1]), strict=True):
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    if calls is not None:
        assert calls
        calls.clear()


@needs_native
@MIXERS
@pytest.mark.parametrize("norm", ["layer", "rms", "none"])
@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_whole_model_is_one_call(mixer, norm, dtype, batch, calls):
    model, state, token = model_of(mixer, norm, batch, dtype)
    calls.clear()
    with torch.no_grad():
        y, after = model.step(token, state)
    assert calls
    assert y.dtype == dtype
    assert_same_step(model, token, state)
    assert_same_step(model, token, after, calls)  # from the state a kernel wrote


@needs_native
@MIXERS
@pytest.mark.parametrize("eps", [None, 1e-2])
def test_the_norm_has_the_eps_of_the_model(mixer, eps, calls):
    model, state, token = model_of(mixer, "rms", norm_eps=eps)
    with torch.no_grad():
        model.encoder.weight.mul_(1e-3)  # beside which an eps is felt
    assert_same_step(model, token, state, calls)


@needs_native
@MIXERS
def test_weights_of_bfloat16_are_no_less_exact_than_operators(mixer, calls):
    model, state, token = model_of(mixer, dtype=torch.bfloat16)
    wide = copy.deepcopy(model).double()
    exact, _ = wide.step(token, map_state(torch.Tensor.double, state))
    (native, after), (other, _) = both(model, token, state)
    assert calls
    assert native.dtype == torch.bfloat16
    assert {h.dtype for h in leaves(after)} == {F32}
    error, its = ((y.double() - exact).abs().max() for y in (native, other))
    assert 0 < error <= 1.5 * its


@needs_native
@MIXERS
def test_a_model_that_was_changed_gives_what_it_is_now(mixer, calls):
    model, state, token = model_of(mixer)
    assert_same_step(model, token, state, calls)
    block = model.blocks[1]
    part = block.mixer.output if mixer == "rwkv4" else block.mixer.out_proj
    with torch.no_grad():
        part.weight.mul_(-1)  # in place
        assert_same_step(model, token, state, calls)
        part.weight = nn.Parameter(torch.randn_like(part.weight))
        assert_same_step(model, token, state, calls)
        part.weight.data = torch.randn_like(part.weight)
        assert_same_step(model, token, state, calls)
        block.mixer = copy.deepcopy(model.blocks[0].mixer)
        assert_same_step(model, token, state, calls)
        model.final_norm.eps = 0.5
        assert_same_step(model, token, state, calls)
        model.load_state_dict(model_of(mixer)[0].state_dict())
        assert_same_step(model, token, state, calls)
    assert_same_step(model.double(), token, map_state(torch.Tensor.double, state), calls)
    state = {"layers": [*state["layers"], state["layers"][0]], "pool": {}}
    model.float().blocks.append(copy.deepcopy(model.blocks[0]))
    assert_same_step(model, token, state)
    del model.blocks[1]
    assert_same_step(model, token, {"layers": state["layers"][1:], "pool": {}}, calls)


class Doubled(nn.Linear):
    """As adapters do it: a subclass with another forward pass."""

    def forward(self, x):
        return 2 * super().forward(x)


@needs_native
@MIXERS
def test_parts_that_are_not_as_known_are_called(mixer):
    model, state, token = model_of(mixer)
    with torch.no_grad():
        before, _ = model.step(token, state)
        mixer_ = model.blocks[2].mixer
        name = "receptance" if mixer == "rwkv4" else "x_proj"
        known = getattr(mixer_, name)
        other = Doubled(known.in_features, known.out_features, bias=False)
        other.load_state_dict(known.state_dict())
        setattr(mixer_, name, other)
        changed, _ = model.step(token, state)
        assert not torch.allclose(before, changed)
        known.weight.mul_(2)
        setattr(mixer_, name, known)
        torch.testing.assert_close(model.step(token, state)[0], changed)
        biased = nn.Linear(known.in_features, known.out_features)
        setattr(mixer_, name, biased)
    assert_same_step(model, token, state)


@needs_native
@MIXERS
def test_hooks_inside_a_model_see_a_step(mixer):
    model, state, token = model_of(mixer)
    seen = []
    with torch.no_grad():
        model.step(token, state)
        model.blocks[1].norm.register_forward_hook(lambda *_: seen.append("norm"))
        model.head.register_forward_pre_hook(lambda *_: seen.append("head"))
        model.step(token, state)
    assert seen == ["norm", "head"]


@needs_native
@pytest.mark.parametrize("mixer", ["mamba", "lru"])
@pytest.mark.parametrize("kind", ["forward", "forward_pre"])
def test_hooks_of_all_modules_see_a_step(mixer, kind):
    model, state, token = model_of(mixer)
    seen = []
    register = getattr(torch.nn.modules.module, f"register_module_{kind}_hook")
    with torch.no_grad():
        model.step(token, state)
        handle = register(lambda module, *_: seen.append(module))
        try:
            model.step(token, state)
        finally:
            handle.remove()
        count = len(seen)
        model.step(token, state)
    assert model.head in seen
    assert len(seen) == count


@needs_native
@MIXERS
def test_dropout_is_drawn_in_training(mixer):
    model, state, token = model_of(mixer, dropout=0.9)
    with torch.no_grad():
        calm = model.step(token, state)[0]
        drawn = model.train().step(token, state)[0]
        assert not torch.equal(calm, drawn)
        assert torch.equal(model.eval().step(token, state)[0], calm)


@needs_native
@MIXERS
def test_many_threads_step_one_model_at_once(mixer):
    model, _, _ = model_of(mixer)
    tokens = torch.arange(8).reshape(8, 1)

    @torch.no_grad()
    def read(first):
        state, ys = model.init_state(1), []
        for i in range(50):
            y, state = model.step((tokens[first] + i) % 11, state)
            ys.append(y)
        return torch.stack(ys)

    expected = [read(i) for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert all(map(torch.equal, pool.map(read, range(8)), expected))


@needs_native
@MIXERS
def test_a_state_or_a_weight_of_another_size_is_an_error(mixer):
    model, state, token = model_of(mixer)
    with torch.no_grad():
        model.step(token, state)
        with pytest.raises(ShapeError, match="state"):
            model.step(token, map_state(lambda h: h[..., :-1], state))
        model.head.weight = nn.Parameter(torch.zeros(11, 10))
        with pytest.raises(RuntimeError):
            model.step(token, state)


@needs_native
def test_a_model_that_was_read_can_be_forgotten():
    model, state, token = model_of("rwkv4")
    with torch.no_grad():
        model.step(token, state)
    forgotten = weakref.ref(model)
    del model
    gc.collect()
    assert forgotten() is None


#: Options whose steps are PyTorch's operators, and why.
NOT_RECORDED = {
    ("hippo", "discretisation", "backward"): "inverts a matrix",
    ("lmu", "learn_theta", True): "makes its matrices anew",
    ("lmu", "recurrent", False): "computes at places that indices name",
}


@needs_native
def test_steps_of_every_option_are_recorded():
    """Texts and flags one at a time, and several writes; but for states that grow."""
    for name in names():
        mixer = load(name)
        several = [{size: 2} for size in ("rank", "writes") if size in sizes(mixer)]
        for options in ({}, *texts_and_flags(mixer), *several):
            layer = build(mixer, **options).eval()
            x, state = torch.randn(1, WIDTH), layer.init_state(1)
            with torch.no_grad():
                state = layer.step(x, state)[1]
                (y, _), (z, _) = layer.step(x, state), layer._step_by_operators(x, state)
                said = explain(layer.step, x, state)
            torch.testing.assert_close(y, z, rtol=1e-4, atol=1e-5, msg=f"{name} {options}")
            refused = "native call" not in said
            if refused and ("another size" in said or "another way" in said):
                continue
            expected = any((name, *option) in NOT_RECORDED for option in options.items())
            assert refused == expected, f"{name} {options}: {said}"
