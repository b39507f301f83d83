"""Cases of the selective scan and its float64 loop; also imported by scripts in other processes."""

import functools

import torch
import torch.nn.functional as F

from linrnn.ops import selective_scan

F64 = torch.float64


def loop(p, *, zoh=False, dt_softplus=False, reset=None):
    """The definition, a step at a time."""
    x, dt, A, D, z = p["x"], p["dt"], p["A"], p.get("D"), p.get("z")
    h = p.get("initial_state", x.new_zeros(len(x), *A.shape))
    ys = []
    for t in range(x.shape[1]):
        step = dt[:, t] + p["dt_bias"] if "dt_bias" in p else dt[:, t]
        step = (F.softplus(step) if dt_softplus else step)[..., None]
        if reset is not None:
            h = torch.where(reset[:, t, None, None], 0, h)
        weight = torch.expm1(step * A) / A if zoh else step
        h = (step * A).exp() * h + weight * p["B"][:, t, None] * x[:, t, :, None]
        y = (h * p["C"][:, t, None]).sum(-1)
        y = y if D is None else y + D * x[:, t]
        ys.append(y if z is None else y * F.silu(z[:, t]))
    return torch.stack(ys, 1), h


def make(batch, time, channels, d_state, *, full=True, seed=0):
    """Float64 arguments; ``full`` has all the optional ones, to be used with softplus."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=g, dtype=F64)

    case = {
        "x": normal(batch, time, channels),
        "dt": normal(batch, time, channels) * 0.5,
        "A": -normal(channels, d_state).exp(),
        "B": normal(batch, time, d_state),
        "C": normal(batch, time, d_state),
    }
    if not full:
        case["dt"] = case["dt"].abs()
        return case
    case |= {"D": normal(channels), "initial_state": normal(batch, channels, d_state)}
    return case | {"z": normal(batch, time, channels), "dt_bias": normal(channels) - 2}


def mask(batch, time, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.rand(batch, time, generator=g) < 0.15


def results(run, case, dtype=F64, grad=True):
    """Outputs and the gradients of every tensor, for fixed cotangents."""
    half = dtype.itemsize < 4
    sequences = ("x", "dt", "B", "C", "z")
    case = {
        n: v.detach().to(torch.float32 if half and n not in sequences else dtype)
        for n, v in case.items()
    }
    case = {n: v.requires_grad_(grad) for n, v in case.items()}
    y, final = run(case)
    named = {"y": y, "final": final}
    if grad:
        g = torch.Generator().manual_seed(7)
        into = [torch.randn(t.shape, generator=g, dtype=F64).to(t.dtype) for t in (y, final)]
        grads = torch.autograd.grad((y, final), list(case.values()), into)
        named |= {f"grad {n}": t for n, t in zip(case, grads, strict=True)}
    return {n: t.detach() for n, t in named.items()}


def ours(backend=None, *, zoh=False, **options):
    def run(case):
        rule = "zoh" if zoh else "euler"
        return selective_scan(**case, b_disc=rule, backend=backend, **options)

    return run


@functools.cache
def _expected(shape, full, zoh, reset, rounded):
    case = {n: v.to(rounded).double() for n, v in make(*shape, full=full).items()}
    options = {
        "zoh": zoh,
        "dt_softplus": full,
        "reset": mask(*shape[:2]) if reset else None,
    }
    return case, options, results(lambda c: loop(c, **options), case)


def compare(backend, shape, *, full, zoh, reset, dtype, roundings=64):
    """A backend against the float64 loop, relative to the largest value of each result."""
    rounded = dtype if dtype.itemsize < 4 else F64
    case, options, expected = _expected(shape, full, zoh, reset, rounded)
    got = results(ours(backend, **options), case, dtype)
    for name, value in got.items():
        want = expected[name]
        allowed = roundings * torch.finfo(value.dtype).eps * want.abs().max().item()
        if dtype.itemsize < 4 and value.dtype == torch.float32:
            allowed = roundings * torch.finfo(dtype).eps * want.abs().max().item()
        error = (value.double() - want).abs().max().item()
        assert error <= allowed, (backend, shape, full, zoh, reset, dtype, name, error, allowed)
