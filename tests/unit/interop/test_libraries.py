"""`accelerate("fla")`: other libraries' functions by ours on a CPU, and back without a trace."""

import importlib.util
import subprocess
import sys
import types

import pytest
import torch
import torch.nn.functional as F

from linrnn.errors import BackendError, UnknownNameError
from linrnn.interop import _mamba_functions as ours
from linrnn.interop import accelerate, fla

B, T, H, P, G, N, C = 2, 9, 4, 3, 2, 5, 6
F64 = torch.float64
SCANS = "mamba_ssm.ops.selective_scan_interface"


def theirs(name):
    """A function of a library that needs a GPU."""

    def function(*args, **kwargs):
        raise RuntimeError(f"{name}: 0 active drivers")

    function.__name__ = name
    return function


@pytest.fixture
def stubs(monkeypatch):
    """Modules as the libraries have them, each with functions that need a GPU."""
    members = {
        "fla": {}, "fla.ops": {}, "fla.ops.gla": {"chunk_gla": theirs("chunk_gla")},
        "mamba_ssm": {}, "mamba_ssm.ops": {}, "mamba_ssm.ops.triton": {},
        SCANS: {"selective_scan_fn": theirs("selective_scan_fn")},
        "causal_conv1d": {
            n: theirs(n) for n in ("causal_conv1d_fn", "causal_conv1d_update")
        },
        "elsewhere": {},
    }  # fmt: skip
    for name in [n for n in sys.modules if n.partition(".")[0] in members]:
        monkeypatch.delitem(sys.modules, name)
    modules = {}
    for name, content in members.items():
        module = modules[name] = types.ModuleType(name)
        module.__path__ = []
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    # bound in the package, and under another name in somebody's module
    modules["fla.ops"].chunk_gla = modules["fla.ops.gla"].chunk_gla
    modules["elsewhere"].attend = modules["fla.ops.gla"].chunk_gla
    modules["mamba_ssm"].selective_scan_fn = modules[SCANS].selective_scan_fn
    return modules


def held(modules):
    return {(m, n): id(x) for m, module in modules.items() for n, x in vars(module).items()}


def test_functions_of_fla_compute_on_a_cpu_and_come_back(stubs):
    before = held(stubs)
    q, k, v = torch.randn(3, 1, 4, 1, 2).unbind()
    g = -torch.rand(1, 4, 1, 2)
    with accelerate("fla") as acceleration:
        assert [row.function for row in acceleration.replaced] == ["chunk_gla"]
        want = fla.chunk_gla(q, k, v, g)[0]
        for function in (stubs["fla.ops"].chunk_gla, stubs["elsewhere"].attend):
            assert torch.equal(function(q, k, v, g)[0], want)
            assert function.__name__ == "chunk_gla"
        with pytest.raises(RuntimeError, match="0 active drivers"):  # tensors that are elsewhere
            stubs["fla.ops"].chunk_gla(*(x.to("meta") for x in (q, k, v, g)))
    assert held(stubs) == before


def test_the_last_of_several_accelerations_puts_functions_back(stubs):
    before = held(stubs)
    first, second = accelerate("fla"), accelerate("fla")
    late = types.ModuleType("late")
    late.chunk_gla = stubs["fla.ops"].chunk_gla  # imported meanwhile
    sys.modules["late"] = late
    try:
        first.detach()
        first.detach()
        assert second.attached
        assert held(stubs) != before
        second.detach()
        assert late.chunk_gla is stubs["fla.ops"].chunk_gla
    finally:
        del sys.modules["late"]
    assert held(stubs) == before
    assert not first.attached


def test_what_has_no_counterpart_is_left_to_the_library(stubs):
    x, weight = torch.randn(1, 2, 5), torch.randn(2, 3)
    with accelerate("causal_conv1d"), accelerate("mamba_ssm"):
        conv = stubs["causal_conv1d"].causal_conv1d_fn
        assert conv(x, weight, activation="silu").shape == x.shape
        with pytest.raises(RuntimeError, match="0 active drivers"):
            conv(x, weight, activation="gelu")
        scan = stubs["mamba_ssm"].selective_scan_fn
        rates, decay = torch.rand(1, 2, 5), -torch.rand(2, 3)
        assert scan(x, rates, decay, *torch.randn(2, 1, 3, 5)).shape == x.shape
        with pytest.raises(RuntimeError, match="0 active drivers"):
            scan(x, rates, decay, *torch.randn(2, 2, 3))


@pytest.mark.unchecked
def test_libraries_that_are_not_there_are_named(monkeypatch):
    with pytest.raises(UnknownNameError, match="mamba_ssm"):
        accelerate("mamba")
    monkeypatch.setitem(sys.modules, "causal_conv1d", None)
    with pytest.raises(BackendError, match="the package 'causal_conv1d' must be importable"):
        accelerate("causal_conv1d")


def draw(*shape):
    return torch.randn(*shape, dtype=F64)


def of_conv(x, weight, bias, start):
    """A convolution written out, over the inputs before."""
    inputs = torch.cat([start, x], -1)
    width = weight.shape[1]
    steps = [inputs[..., t : t + width] for t in range(x.shape[-1])]
    return F.silu(torch.stack([(s * weight).sum(-1) for s in steps], -1) + bias[:, None])


def test_convolution_whole_in_steps_and_of_marked_sequences():
    torch.manual_seed(0)
    x, weight, bias, start = draw(B, C, T), draw(C, 4), draw(C), draw(B, C, 3)
    options = {"bias": bias, "activation": "silu"}
    y, last = ours.causal_conv1d_fn(
        x, weight, initial_states=start, return_final_states=True, **options
    )
    torch.testing.assert_close(y, of_conv(x, weight, bias, start))
    torch.testing.assert_close(last, x[..., -3:])
    state = F.pad(start, (1, 0)).clone()  # four inputs, as the library keeps them
    steps = [ours.causal_conv1d_update(x[..., t], state, weight, **options) for t in range(T)]
    torch.testing.assert_close(torch.stack(steps, -1), y)
    torch.testing.assert_close(state, x[..., -4:])
    state = F.pad(start, (1, 0)).clone()
    torch.testing.assert_close(ours.causal_conv1d_update(x, state, weight, **options), y)
    marks = torch.tensor([0] * 4 + [1] * 5).expand(B, T)
    y = ours.causal_conv1d_fn(x, weight, seq_idx=marks, **options)
    empty = torch.zeros_like(start)
    want = [of_conv(part, weight, bias, empty) for part in (x[..., :4], x[..., 4:])]
    torch.testing.assert_close(y, torch.cat(want, -1))


@pytest.mark.parametrize("groups", [0, 2])
def test_scan_of_mamba_whole_and_in_steps(groups):
    torch.manual_seed(0)
    u, delta, z = draw(3, B, C, T).unbind()
    A, D, bias = -torch.rand(C, N, dtype=F64), draw(C), draw(C)
    of_groups = (groups,) if groups else ()
    Bs, Cs = (draw(B, *of_groups, N, T) for _ in range(2))
    y, last = ours.selective_scan_fn(
        u, delta, A, Bs, Cs, D, z, bias, delta_softplus=True, return_last_state=True
    )
    each = [x.repeat_interleave(C // groups, 1) if groups else x[:, None] for x in (Bs, Cs)]
    h, state, outputs = draw(B, C, N) * 0, torch.zeros(B, C, N, dtype=F64), []
    for t in range(T):
        dt = F.softplus(delta[..., t] + bias)[..., None]
        h = (dt * A).exp() * h + dt * each[0][..., t] * u[..., t, None]
        read = (h * each[1][..., t]).sum(-1) + D * u[..., t]
        outputs.append(read * F.silu(z[..., t]))
        if not groups:
            step = ours.selective_state_update(
                *(state, u[..., t], delta[..., t], A, Bs[..., t], Cs[..., t], D, z[..., t], bias),
                dt_softplus=True,
            )
            torch.testing.assert_close(step, outputs[-1])
    torch.testing.assert_close(y, torch.stack(outputs, -1))
    torch.testing.assert_close(last, h)
    if not groups:
        torch.testing.assert_close(state, h)


def test_scan_of_mamba_2_whole_in_steps_and_of_marked_sequences():
    torch.manual_seed(0)
    x, z = draw(2, B, T, H, P).unbind()
    dt, A, D, bias = draw(B, T, H), -torch.rand(H, dtype=F64), draw(H), draw(H)
    Bs, Cs = (draw(B, T, G, N) for _ in range(2))
    start = draw(B, H, P, N)
    options = {"D": D, "z": z, "dt_bias": bias, "dt_softplus": True}
    y, last = ours.mamba_chunk_scan_combined(
        x, dt, A, Bs, Cs, 64, initial_states=start, return_final_states=True, **options
    )
    h = start.clone()
    wide = {"A": A[:, None, None].expand(H, P, N), "D": D[:, None].expand(H, P)}
    for t in range(T):
        step = ours.selective_state_update(
            h, x[:, t], dt[:, t, :, None].expand(B, H, P), wide["A"], Bs[:, t], Cs[:, t],
            wide["D"], z[:, t], bias[:, None].expand(H, P), dt_softplus=True,
        )  # fmt: skip
        torch.testing.assert_close(step, y[:, t])
    torch.testing.assert_close(last, h)
    marks = torch.tensor([0] * 4 + [1] * 5).expand(B, T)
    marked = ours.mamba_chunk_scan_combined(x, dt, A, Bs, Cs, 64, seq_idx=marks, **options)
    parts = []
    for here in (slice(0, 4), slice(4, T)):
        gate = options | {"z": z[:, here]}
        arguments = (x[:, here], dt[:, here], A, Bs[:, here], Cs[:, here], 64)
        parts.append(ours.mamba_chunk_scan_combined(*arguments, **gate))
    torch.testing.assert_close(marked, torch.cat(parts, 1))
    bounded = ours.mamba_chunk_scan_combined(x, dt, A, Bs, Cs, 64, dt_limit=(0.1, 0.2))
    want = ours.mamba_chunk_scan_combined(x, dt.clamp(0.1, 0.2), A, Bs, Cs, 64)
    torch.testing.assert_close(bounded, want)


PROGRAM = """
import torch
import fla.ops
from fla.ops import chunk_gla as bound
from linrnn.interop import fla as ours
from linrnn.interop import accelerate
q, k, v = torch.randn(3, 1, 6, 2, 16).unbind()
g = torch.nn.functional.logsigmoid(torch.randn(1, 6, 2, 16))
original = bound
with accelerate("fla") as acceleration:
    names = {row.function for row in acceleration.replaced}
    assert set(ours.names()) - names == {"chunk_gdn", "fused_recurrent_gdn"}
    o, memory = fla.ops.gla.chunk_gla(q, k, v, g, output_final_state=True)
    want = ours.chunk_gla(q, k, v, g, output_final_state=True)
    assert torch.equal(o, want[0]) and torch.equal(memory, want[1])
    assert torch.equal(bound(q, k, v, g)[0], o)
    beta = torch.rand(1, 6, 2)
    fla.ops.chunk_gdn(q, k, v, -beta, beta)
assert bound is original is fla.ops.gla.chunk.chunk_gla
"""


@pytest.mark.skipif(importlib.util.find_spec("fla") is None, reason="fla-core is not installed")
def test_the_library_itself_computes_on_a_cpu():
    subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], check=True, timeout=600)
