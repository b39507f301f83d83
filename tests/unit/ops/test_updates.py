"""Steps in place: against a loop in double precision, in every dtype and layout."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from linrnn.compute import in_place, native
from linrnn.compute.in_place import UPDATES
from linrnn.compute.op import reached
from linrnn.errors import ArgumentError, LinrnnError
from linrnn.ops import (
    causal_conv,
    conv_update,
    delta_scan,
    delta_update,
    explain,
    outer_scan,
    outer_update,
    selective_scan,
    selective_update,
    use_backend,
)

BACKENDS = ["cpu", "tree"] if native.load()[0] is not None else ["tree"]
HALF = (torch.bfloat16, torch.float16)
DTYPES = [
    (torch.float64, torch.float64),
    (torch.float32, torch.float32),
    *((half, torch.float32) for half in HALF),
    *((half, half) for half in HALF),
]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def draw(seed):
    generator = torch.Generator().manual_seed(seed)

    def numbers(*shape):
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    return numbers


def conv(batch, seed=0, channels=70, width=4, more=True):
    n = draw(seed)
    call = {
        "x": n(batch, channels),
        "state": n(batch, channels, width),
        "weight": n(channels, width),
    }
    return call | ({"bias": n(channels), "activation": "silu"} if more else {})


def conv_loop(x, state, weight, bias=None, activation=None):
    after = torch.cat([state[..., 1:], x[..., None]], -1)
    y = torch.einsum("bcw,cw->bc", after, weight) + (0 if bias is None else bias)
    return F.silu(y) if activation else y, after


def selective(batch, seed=0, channels=70, modes=16, more=True):
    n = draw(seed)
    call = {
        "state": n(batch, channels, modes),
        "x": n(batch, channels),
        "dt": n(batch, channels).abs(),
    }
    call |= {"A": -n(channels, modes).abs(), "B": n(batch, modes), "C": n(batch, modes)}
    if more:
        call |= {
            "D": n(channels),
            "z": n(batch, channels),
            "dt_bias": n(channels),
            "dt_softplus": True,
        }
    return call


def selective_loop(state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False):
    step = {"x": x, "dt": dt, "B": B, "C": C} | ({} if z is None else {"z": z})
    sequences = {name: t[:, None] for name, t in step.items()}
    y, after = selective_scan(
        A=A,
        D=D,
        dt_bias=dt_bias,
        dt_softplus=dt_softplus,
        initial_state=state,
        backend="reference",
        **sequences,
    )
    return y[:, 0], after


def outer(batch, seed=0, heads=4, groups=2, width=20, modes=18, more=True):
    n = draw(seed)
    call = {"state": n(batch, heads, width, modes), "x": n(batch, heads, width)}
    call |= {"dt": n(batch, heads).abs(), "A": -n(heads).abs()}
    call |= {"B": n(batch, groups, modes), "C": n(batch, groups, modes)}
    if more:
        call |= {"D": n(heads), "z": n(batch, heads, width), "dt_bias": n(heads)}
        call |= {"dt_softplus": True, "dt_limit": (0.5, 1.0)}
    return call


def outer_loop(
    state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False, dt_limit=(0, 1e9)
):
    dt = dt if dt_bias is None else dt + dt_bias
    dt = (F.softplus(dt) if dt_softplus else dt).clamp(*dt_limit)
    y, after = outer_scan(
        C[:, None], B[:, None], (dt[..., None] * x)[:, None], (dt * A)[:, None], state.mT,
        backend="reference",
    )  # fmt: skip
    y = y[:, 0] + (0 if D is None else D[:, None] * x)
    return y if z is None else y * F.silu(z), after.mT


def delta(batch, seed=0, heads=4, key_heads=2, keys=18, values=20, more=True):
    n = draw(seed)
    call = {"state": n(batch, heads, keys, values), "q": n(batch, key_heads, keys)}
    call |= {"k": 0.3 * n(batch, key_heads, keys), "v": n(batch, heads, values)}
    if more:
        g = n(batch, heads) if seed % 2 else n(batch, heads, keys)
        call |= {"g": -g.abs(), "beta": n(batch, heads).sigmoid(), "qk_norm": 1e-6, "scale": 0.5}
    return call


def delta_loop(state, q, k, v, g=None, beta=None, qk_norm=None, scale=1.0):
    if qk_norm is not None:
        q, k = (t / (t.square().sum(-1, keepdim=True) + qk_norm).sqrt() for t in (q, k))
    step = [None if t is None else t[:, None] for t in (q, k, v, beta, g)]
    y, after = delta_scan(*step, state, scale=scale, backend="reference")
    return y[:, 0], after


CASES = {
    "conv_update": (conv_update, conv, conv_loop),
    "selective_update": (selective_update, selective, selective_loop),
    "outer_update": (outer_update, outer, outer_loop),
    "delta_update": (delta_update, delta, delta_loop),
}
each_update = pytest.mark.parametrize("name", CASES)
each_backend = pytest.mark.parametrize("backend", BACKENDS)
SMALL = {
    "conv_update": [{"channels": 1, "width": 1}, {"channels": 3, "width": 3, "more": False}],
    "selective_update": [{"channels": 1, "modes": 1}, {"channels": 5, "modes": 17, "more": False}],
    "outer_update": [
        {"heads": 1, "groups": 1, "width": 1, "modes": 1},
        {"heads": 6, "groups": 1, "width": 64, "modes": 64, "more": False},
    ],
    "delta_update": [
        {"heads": 1, "key_heads": 1, "keys": 1, "values": 1},
        {"heads": 2, "key_heads": 2, "keys": 64, "values": 33, "more": False},
    ],
}


def typed(call, dtype, state_dtype):
    return {
        name: x.to(state_dtype if name == "state" else dtype) if torch.is_tensor(x) else x
        for name, x in call.items()
    }


def loop_of(name, call):
    """The output and the next state in double precision, for the numbers that a call has."""
    double = {n: x.double() if torch.is_tensor(x) else x for n, x in call.items()}
    return CASES[name][2](**double)


def check(name, call, backend):
    """The call against the loop, and that it writes the state where it lies."""
    y_true, after = loop_of(name, call)
    state, address, version = call["state"], call["state"].data_ptr(), call["state"]._version
    inputs = {n: x.clone() for n, x in call.items() if torch.is_tensor(x) and n != "state"}
    y = CASES[name][0](**call, backend=backend)
    like = call["v" if "v" in call else "x"]
    assert y.dtype == like.dtype
    assert y.shape == like.shape
    assert y.is_contiguous()
    assert state.data_ptr() == address
    assert state._version > version  # autograd notices that a saved tensor was written
    for got, true, dtype in ((y, y_true, y.dtype), (state, after, state.dtype)):
        scale = 1 + (true.abs().max() if true.numel() else 0)
        torch.testing.assert_close(
            got.double(), true.view(got.shape), rtol=0, atol=float(TOLERANCE[dtype] * scale)
        )
    for n, x in inputs.items():
        assert torch.equal(x, call[n]), n


@each_update
@each_backend
@pytest.mark.parametrize(("dtype", "state_dtype"), DTYPES)
def test_update_equals_the_loop(name, backend, dtype, state_dtype):
    for batch, (seed, options) in itertools.product((1, 3), enumerate([{}, {}, *SMALL[name]])):
        call = typed(CASES[name][1](batch, seed, **options), dtype, state_dtype)
        check(name, call, backend)
        check(name, call, backend)  # from the state it wrote, by the plan it made


@each_update
@each_backend
def test_update_of_no_rows(name, backend):
    check(name, CASES[name][1](0), backend)


@each_update
@each_backend
def test_dtypes_may_be_mixed(name, backend):
    call = typed(CASES[name][1](2), torch.bfloat16, torch.float32)
    for i, (n, x) in enumerate(call.items()):
        if torch.is_tensor(x) and n not in ("state", "x", "v") and i % 2:
            call[n] = x.float()
    check(name, call, backend)
    check(
        name, {n: x.double() if n == "A" or n == "weight" else x for n, x in call.items()}, backend
    )


@each_update
@each_backend
def test_any_strides_of_inputs_and_state(name, backend):
    views = (
        lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
        lambda x: torch.stack([x, -x], -1).flatten(-2)[..., ::2],
        lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
        lambda x: x.mT.contiguous().mT if x.ndim > 1 else x,
    )
    for view in views:
        call = typed(CASES[name][1](3), torch.float32, torch.float32)
        check(name, {n: view(x) if torch.is_tensor(x) else x for n, x in call.items()}, backend)


@each_update
@each_backend
def test_rows_of_a_larger_cache(name, backend):
    """Memory around a state that is part of a cache stays as it was."""
    call = typed(CASES[name][1](3), torch.float32, torch.float32)
    cache = torch.full((2, 5, *call["state"].shape[1:]), 7.0)
    cache[1, 1:4] = call["state"]
    check(name, call | {"state": cache[1, 1:4]}, backend)
    assert cache[0].eq(7).all()
    assert cache[1, 0].eq(7).all()
    assert cache[1, 4].eq(7).all()


@each_update
@each_backend
def test_output_shares_no_memory(name, backend):
    call = typed(CASES[name][1](2), torch.float32, torch.float32)
    update = CASES[name][0]
    first = update(**call, backend=backend)
    copy = first.clone()
    second = update(**call, backend=backend)
    assert torch.equal(first, copy)
    memories = {
        x.untyped_storage().data_ptr()
        for x in (first, second, *call.values())
        if torch.is_tensor(x)
    }
    assert len(memories) == 2 + sum(map(torch.is_tensor, call.values()))


@pytest.mark.parametrize("backend", BACKENDS)
def test_expanded_arguments_of_mamba2(backend):
    """As transformers hands them over, and such that really differ from channel to channel."""
    call = typed(outer(2), torch.float32, torch.float32)
    width, modes = call["state"].shape[2:]
    expanded = call | {
        "dt": call["dt"][..., None].expand(-1, -1, width),
        "A": call["A"][:, None, None].expand(-1, width, modes),
        "D": call["D"][:, None].expand(-1, width),
        "dt_bias": call["dt_bias"][:, None].expand(-1, width),
    }
    states = []
    for arguments in (
        call,
        expanded,
        {n: x.clone() if torch.is_tensor(x) else x for n, x in expanded.items()},
    ):
        state = call["state"].clone()
        y = outer_update(**arguments | {"state": state}, backend=backend)
        states.append((y, state))
    for y, state in states[1:]:
        torch.testing.assert_close(y, states[0][0])
        torch.testing.assert_close(state, states[0][1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_many_steps_equal_a_scan(backend):
    time, channels = 20, 6
    n = draw(3)
    x, weight, bias = n(2, time, channels), n(channels, 4), n(channels)
    y, _ = causal_conv(x, weight, bias, silu=True)
    state = torch.zeros(2, channels, 4, dtype=torch.float64)
    steps = [conv_update(x[:, t, :, None], state, weight, bias, "silu") for t in range(time)]
    torch.testing.assert_close(torch.cat(steps, -1).mT, y)


@each_update
def test_several_threads_give_the_same(name):
    large = {
        "conv_update": {"channels": 40_000},
        "selective_update": {"channels": 3000},
        "outer_update": {"heads": 16, "width": 128, "modes": 128},
        "delta_update": {"heads": 16, "keys": 128, "values": 128},
    }
    call = typed(CASES[name][1](2, **large[name]), torch.float32, torch.float32)
    results, threads = [], torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            state = call["state"].clone()
            results.append((CASES[name][0](**call | {"state": state}), state))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


@pytest.mark.skipif("cpu" not in BACKENDS, reason="no native kernels")
@each_update
def test_a_plan_is_made_once_and_chosen_by_kind(name, monkeypatch):
    call = typed(CASES[name][1](2), torch.float32, torch.float32)
    update = CASES[name][0]
    update(**call)
    monkeypatch.setattr(in_place.Update, "_whole", None)  # what a known kind does not need
    update(**call)
    monkeypatch.undo()
    with use_backend("tree"):
        assert explain(update, **call).startswith("tree: requested")
    assert explain(update, **call).startswith("cpu: the fastest")
    assert explain(name, **call).startswith("cpu: the fastest")


@pytest.mark.skipif("cpu" not in BACKENDS, reason="no native kernels")
@each_update
def test_memory_between_two_numbers_is_read_by_operators(name):
    call = typed(CASES[name][1](2), torch.float32, torch.float32)
    state = call["state"]
    CASES[name][0](**call | {"state": state.clone()})
    raw = torch.zeros(state.numel() * 4 + 1, dtype=torch.uint8)
    odd = torch.frombuffer(memoryview(raw.numpy())[1:], dtype=torch.float32).view(state.shape)
    odd.copy_(state)
    check(name, call | {"state": odd}, "auto")


@each_update
def test_gradients_are_refused(name):
    call = typed(CASES[name][1](2), torch.float32, torch.float32)
    for n in [n for n, x in call.items() if torch.is_tensor(x)]:
        wanting = call | {n: call[n].clone().requires_grad_()}
        with pytest.raises(ArgumentError, match="must need no gradient"):
            CASES[name][0](**wanting)
        with torch.no_grad():
            CASES[name][0](**wanting)
    with torch.inference_mode():
        CASES[name][0](**typed(CASES[name][1](2), torch.float32, torch.float32))


@pytest.mark.unchecked
@each_update
def test_arguments_that_do_not_fit_are_refused(name):
    call = typed(CASES[name][1](2), torch.float32, torch.float32)
    update = CASES[name][0]
    update(**call)
    for n in [n for n, x in call.items() if torch.is_tensor(x)]:
        x = call[n]
        for bad in (
            x[..., :-1],
            x[:1].expand(5, *x.shape[1:]),
            x[None, None],
            x.to(torch.int32),
            1.0,
        ):
            with pytest.raises(LinrnnError, match=name):
                update(**call | {n: bad})
    overlapping = call["state"][:1].expand(call["state"].shape)
    with pytest.raises(ArgumentError, match="state must have separate memory"):
        update(**call | {"state": overlapping})
    with pytest.raises(LinrnnError, match=r"no .* backend named 'fast'"):
        update(**call, backend="fast")


@pytest.mark.unchecked
def test_errors_name_rule_and_value():
    with pytest.raises(LinrnnError, match="no conv_update activation named 'relu'"):
        conv_update(**conv(2) | {"activation": "relu"})
    with pytest.raises(ArgumentError, match=r"dt_limit must rise, got \(2.0, 1.0\)"):
        outer_update(**outer(2) | {"dt_limit": (2.0, 1.0)})
    with pytest.raises(LinrnnError, match="groups of B and C must divide heads=4, got 3"):
        outer_update(**outer(2, groups=3))
    with pytest.raises(LinrnnError, match="heads of q and k must divide heads=4, got 3"):
        delta_update(**delta(2, key_heads=3))
    with pytest.raises(ArgumentError, match="qk_norm must be at least 0 or None, got -1"):
        delta_update(**delta(2) | {"qk_norm": -1.0})


@each_update
def test_mapped_calls_and_calls_without_memory(name):
    call = typed(CASES[name][1](2), torch.float32, torch.float32)
    update = CASES[name][0]
    bare = {n: x.to("meta") if torch.is_tensor(x) else x for n, x in call.items()}
    y = update(**bare)
    assert y.is_meta
    assert y.shape == call["v" if "v" in call else "x"].shape
    several = [typed(CASES[name][1](2, seed), torch.float64, torch.float64) for seed in (0, 2)]
    expected = [loop_of(name, each) for each in several]
    tensors = {
        n: torch.stack([each[n] for each in several]) for n in call if torch.is_tensor(call[n])
    }
    options = {n: x for n, x in call.items() if n not in tensors}
    mapped = torch.func.vmap(lambda tensors: update(**tensors, **options))(tensors)
    torch.testing.assert_close(mapped, torch.stack([y for y, _ in expected]))
    torch.testing.assert_close(tensors["state"], torch.stack([after for _, after in expected]))


@pytest.mark.unchecked
@each_update
def test_compiled_and_exported_steps_write_the_state(name):
    call = typed(CASES[name][1](2), torch.float32, torch.float32)
    update = CASES[name][0]
    tensors = {n: x for n, x in call.items() if torch.is_tensor(x)}
    options = {n: x for n, x in call.items() if n not in tensors}

    def step(tensors):
        return update(**tensors, **options)

    eager = {n: x.clone() for n, x in tensors.items()}
    y = step(eager)
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    got = {n: x.clone() for n, x in tensors.items()}
    torch.testing.assert_close(compiled(got), y)
    torch.testing.assert_close(got["state"], eager["state"])

    class Step(torch.nn.Module):
        def forward(self, tensors):
            return step(tensors)

    fresh = {n: x.clone() for n, x in tensors.items()}
    graph = torch.export.export(Step(), ({n: x.clone() for n, x in tensors.items()},)).module()
    torch.testing.assert_close(graph(fresh), y)
    torch.testing.assert_close(fresh["state"], eager["state"])


@each_update
def test_operator_is_as_pytorch_wants_it(name):
    call = typed(CASES[name][1](2), torch.float32, torch.float32)
    _, arguments, backend = reached(CASES[name][0], **call)
    torch.library.opcheck(getattr(torch.ops.linrnn, name).default, (*arguments, backend))


def test_every_update_is_tried():
    assert set(CASES) == set(UPDATES)
