"""`linrnn.interop.fla`: every function beside its recurrence, written as a loop in float64."""

import importlib.machinery
import inspect
import itertools
import sys
import types

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.interop import _fla_ops, fla

B, T, H, K, V, M = 2, 7, 2, 3, 4, 5
F64 = torch.float64
NAMES = fla.names()


SYSTEMS = {
    name: computes.__name__
    for computes, text in fla._SIGNATURES.items()
    for name, _ in fla._signatures(text)
}
SYSTEMS |= dict.fromkeys(("chunk_gdn", "fused_recurrent_gdn"), "gated_delta_rule")


def arguments(name, seqs=B):
    """Arguments of every kind that a function takes, float64 with gradients."""
    torch.manual_seed(0)
    has = fla.signature(name).parameters
    system = SYSTEMS[name]
    key, value, step = (B, T, H, K), (B, T, H, V), (B, T, H)
    writes = 2 if system == "gated_delta_product" else 1

    def draw(*shape):
        return torch.randn(*shape, dtype=F64)

    channels = system in ("gla", "kda", "gdn2", "low_rank", "rwkv7", "rwkv6")
    channels = channels or name.endswith("precond_kda")
    decays = (B, T, H, M) if system == "slots" else key if channels else step
    shapes = {**dict.fromkeys("qrbap", key), "k": (B, writes * T, H, K), "v": (B, writes * T, H, V)}
    x = {n: draw(*shape) for n, shape in shapes.items()}
    x |= {n: F.logsigmoid(draw(*decays)) for n in ("g", "w")}
    x |= {"gk": F.logsigmoid(draw(*key)), "g_atk": F.logsigmoid(draw(*step)), "u": draw(H, K)}
    x |= {"gv": F.logsigmoid(draw(*value)), "g_gamma": -torch.rand(H, dtype=F64)}
    x |= {"beta": torch.rand(B, writes * T, H, dtype=F64), "beta_atk": torch.rand(*step, dtype=F64)}
    x |= {"s": torch.rand(B, T, H, M, dtype=F64), "x": draw(B, T, V), "A_log": draw(H)}
    x |= {"dt_bias": draw(H * K) if channels else draw(H)}
    if system == "gdn2":
        x |= {"b": torch.rand(*key, dtype=F64), "w": torch.rand(*value, dtype=F64)}
    if system in ("low_rank", "rwkv7"):
        x |= {"a": -F.normalize(x["a"], dim=-1), "b": F.normalize(x["a"], dim=-1) * 0.5}
    if system == "mesa_net":
        x |= {"lamb": 0.5 + torch.rand(H, K, dtype=F64)}
    if system == "log_linear":
        x |= {"level_scales": torch.rand(B, T, H, 4, dtype=F64)}
    if system == "hgrn":
        x["g"] = F.logsigmoid(draw(B, T, V))
    if system in ("delta_rule", "gated_delta_rule", "comba", "kda"):
        x["k"] = F.normalize(x["k"], dim=-1)
    if system == "linear_attention" or system == "based":
        x |= {"q": x["q"].abs(), "k": x["k"].abs()}
    x |= {"log_alpha": F.logsigmoid(draw(*step)), "log_mu": F.logsigmoid(draw(*step))}
    x |= {"eta": torch.rand(*step, dtype=F64), "sink_bias": draw(H)}
    if system == "path_attention":
        x["w"] = F.normalize(draw(*key), dim=-1)
    if system == "gated_oja_rule":
        x["v"] = F.normalize(x["v"], dim=-1)
    left_out = {"A_log", "dt_bias", "g_atk", "beta_atk"} - {
        n for n, p in has.items() if p.default is inspect.Parameter.empty
    }
    if system == "preconditioned_delta_rule":
        left_out -= {"g_atk", "beta_atk"}
    if has.get("x") is not None and system != "hgrn":  # a number
        left_out |= {"x"}
    chosen = {n: y.requires_grad_() for n, y in x.items() if n in has and n not in left_out}
    more = {"layer_idx": 1, "num_layers": 4, "num_householder": 2, "window_size": 4}
    more["use_qk_l2norm_in_kernel"] = False
    if "initial_state" in has:
        start = "normalised" if normalised(name) else system
        more |= {"initial_state": state(start, seqs), "output_final_state": True}
    if "initial_A_state" in has:
        more["initial_A_state"] = torch.rand(seqs, H, K, dtype=F64)
    if system == "mesa_net":
        root = torch.randn(seqs, H, K, K, dtype=F64)
        more |= {"h_kk_init": root @ root.mT, "h_kv_init": state(system, seqs)}
        more |= {"max_CG_iteration": 3 * K, "output_final_state": True}
    if name in ("chunk_abc", "chunk_log_linear_attn"):
        more["initial_state"] = None  # a softmax over time begins with the sequence
    return {**chosen, **{n: y for n, y in more.items() if n in has}}


def normalised(name):
    option = fla.signature(name).parameters.get("normalize")
    return option is not None and option.default


def state(system, seqs):
    def draw(*shape):
        return torch.randn(seqs, *shape, dtype=F64)

    if system == "hgrn":
        return draw(V)
    if system == "slots":
        return draw(H, K, M), draw(H, M, V)
    if system == "momentum_delta_rule":
        return torch.stack([draw(H, K, V), draw(H, K, V)])
    if system == "normalised":
        return draw(H, K, V), draw(1, H, K).abs()
    return draw(H, K, V)


def loop(name, x):
    """Outputs and last states of a function, step by step."""
    system, q = SYSTEMS[name], x.get("q", x.get("r"))
    if system == "hgrn":
        return _hgrn(x)
    if system == "slots":
        return _slots(x)
    if system == "mesa_net":
        return _mesa(x)
    if system == "log_linear":
        return _log_linear(x), ()
    if system == "based":
        scores = (q.transpose(1, 2) @ x["k"].transpose(1, 2).mT) * K**-0.5  # (B, H, T, T)
        weights = (1 + scores + scores**2 / 2).tril()
        y = weights @ x["v"].transpose(1, 2) / (weights.sum(-1, keepdim=True) + 1e-6)
        return y.transpose(1, 2), None
    if system in ("attention", "forgetting_attention", "path_attention", "rebased"):
        return _weighted(system, x)
    if system == "stick_breaking":
        return _stick(x)
    if system == "momentum_delta_rule":
        return _momentum(x)
    S, seqs = x.get("initial_state"), q.shape[0]
    S, z = S if normalised(name) else (S, None)
    S = torch.zeros(seqs, H, K, V, dtype=F64) if S is None else S
    A, outputs = x.get("initial_A_state"), []
    scale = 1.0 if name == "chunk_rwkv7" else K**-0.5
    for t in range(q.shape[1]):
        S, A, o = _step(system, x, S, A, t)
        y = scale * o
        if z is not None:
            z = z + x["k"][:, t : t + 1]  # (B, 1, H, K)
            y = y / (scale * (q[:, t] * z[:, 0]).sum(-1, keepdim=True) + 1e-10)
        outputs.append(y)
    final = S if z is None else (S, z)
    return torch.stack(outputs, 1), (final, A) if A is not None else final


def _step(system, x, S, A, t):
    over_time = {n: y for n, y in x.items() if isinstance(y, Tensor) and "initial" not in n}
    at = {n: y[:, t] for n, y in over_time.items() if y.ndim >= 3}
    q, n = x.get("q", x.get("r"))[:, t], 2 if system == "gated_delta_product" else 1
    before, decay = S, _decay(system, x, at)
    S = S * decay
    if system != "gated_oja_rule" and "gv" in at:
        S = S * at["gv"].exp().unsqueeze(-2)

    def read(p, S):
        return torch.einsum("bhk,bhkv->bhv", p, S)

    def write(k, v):
        return torch.einsum("bhk,bhv->bhkv", k, v)

    k, v = x["k"][:, n * t], x["v"][:, n * t]
    if system == "rwkv6":
        o = read(q, before + write(x["u"] * k, v))
        return S + write(k, v), A, o
    if system in ("low_rank", "rwkv7"):
        S = S + write(at["b"], read(at["a"], before)) + write(k, v)
    elif system == "gdn2":
        S = S + write(k, at["w"] * v - read(at["b"] * k, S))
    elif system == "gated_oja_rule":
        S = before * at["gv"].exp().unsqueeze(-2)
        S = S + write(at["beta"].unsqueeze(-1) * (k - torch.einsum("bhkv,bhv->bhk", S, v)), v)
    elif system in ("delta_rule", "gated_delta_rule", "kda", "comba"):
        S = S + write(k, at["beta"].unsqueeze(-1) * (v - read(at.get("p", k), S)))
    elif system == "gated_delta_product":
        for j in range(n):
            k, v, beta = (x[name][:, n * t + j] for name in ("k", "v", "beta"))
            S = S + write(k, beta.unsqueeze(-1) * (v - read(k, S)))
    elif system == "preconditioned_delta_rule":
        A = A * at["g_atk"].exp().unsqueeze(-1) + at["beta_atk"].unsqueeze(-1) * k**2
        r = (A + 1e-6).log() + 0.2
        keys = k * 1.5 ** (-r / (1 + r.abs()))
        S = S + write(keys, at["beta"].unsqueeze(-1) * (v - read(k, S)))
    else:
        S = S + write(k, v)
    return S, A, read(q, S)


def _decay(system, x, at):
    """The factor of each row of the memory, (B, H, K or 1, 1)."""
    heads = torch.arange(H, dtype=F64)
    if "retention" in system:
        return (1 - 2 ** (-5 - heads)).view(1, H, 1, 1)
    if system == "lightning_attention":
        return (-8 / H * (1 - 1 / 4) * heads).exp().view(1, H, 1, 1)
    log = torch.zeros(1, H, 1, dtype=F64)
    for name in ("g", "gk", "w"):
        if name in at and not (system == "gdn2" and name == "w"):
            log = log + (at[name] if at[name].ndim == 3 else at[name].unsqueeze(-1))
    if "g_gamma" in x:
        log = log + x["g_gamma"].view(1, H, 1)
    return log.exp().unsqueeze(-1)


def _hgrn(x):
    h, ys = x["initial_state"], []
    for t in range(x["x"].shape[1]):
        h = x["g"][:, t].exp() * h + x["x"][:, t]
        ys.append(h)
    return torch.stack(ys, 1), h


def _slots(x):
    s, ys = x["s"], []
    keys, values = x["initial_state"] or (s.new_zeros(B, H, K, M), s.new_zeros(B, H, M, V))
    weights, decays = s, x.get("g")
    if decays is None:
        sums = s.exp().cumsum(1)
        weights = s.exp() / sums
        decays = torch.cat([torch.zeros_like(s[:, :1]), (sums[:, :-1] / sums[:, 1:]).log()], 1)
    for t in range(s.shape[1]):
        decay, write = decays[:, t].exp(), weights[:, t]
        keys = keys * decay.unsqueeze(-2) + x["k"][:, t].unsqueeze(-1) * write.unsqueeze(-2)
        values = values * decay.unsqueeze(-1) + write.unsqueeze(-1) * x["v"][:, t].unsqueeze(-2)
        scores = torch.einsum("bhk,bhkm->bhm", x["q"][:, t], keys) * K**-0.5
        ys.append(torch.einsum("bhm,bhmv->bhv", scores.softmax(-1), values))
    return torch.stack(ys, 1), (keys, values)


def _weighted(system, x):
    """Scores of all pairs, one by one; then what is seen, and the weights."""
    q, k, v = (x[n].transpose(1, 2) for n in "qkv")  # (B, H, T, K)
    _, heads, steps = q.shape[:3]
    rows = []
    for t in range(steps):
        row = []
        for s in range(t + 1):
            key = k[:, :, s]
            for i in range(s + 1, t + 1) if system == "path_attention" else ():
                w, beta = x["w"][:, i], x["beta"][:, i]
                key = key - (beta * (w * key).sum(-1)).unsqueeze(-1) * w
            row.append((q[:, :, t] * key).sum(-1))
        row += [torch.full_like(row[0], float("-inf"))] * (steps - t - 1)
        rows.append(torch.stack(row, -1))
    scores = torch.stack(rows, 2)  # (B, H, T, T)
    if system == "rebased":
        weights = (scores * K**-0.5).square().tril()
        return (weights @ v / (weights.sum(-1, keepdim=True) + 1e-5)).transpose(1, 2), None
    total = x["g"].cumsum(1).transpose(1, 2)
    decays = total.unsqueeze(-1) - total.unsqueeze(-2)
    scale = K**-0.5
    scores = (scores + decays) * scale if system == "path_attention" else scores * scale + decays
    age = torch.arange(steps).unsqueeze(-1) - torch.arange(steps)
    seen = (age >= 0) & (age < x.get("window_size", steps))
    weights = scores.masked_fill(~seen, float("-inf")).exp()
    sums = weights.sum(-1, keepdim=True)
    if "sink_bias" in x:
        sums = sums + x["sink_bias"].exp().view(1, heads, 1, 1)
    return (weights @ v / sums).transpose(1, 2), None


def _stick(x):
    outputs, rest = [], []
    for t in range(x["q"].shape[1]):
        left, y = torch.ones(len(x["q"]), H, dtype=F64), torch.zeros(len(x["q"]), H, V, dtype=F64)
        for s in range(t - 1, -1, -1):
            share = ((x["q"][:, t] * x["k"][:, s]).sum(-1) * K**-0.5).sigmoid()
            y = y + (left * share).unsqueeze(-1) * x["v"][:, s]
            left = left * (1 - share)
        outputs.append(y)
        rest.append(left)
    return torch.stack(outputs, 1), torch.stack(rest, 1)


def _momentum(x):
    (S, M), outputs = x["initial_state"], []
    for t in range(x["q"].shape[1]):
        at = {n: y[:, t] for n, y in x.items() if isinstance(y, Tensor) and n != "initial_state"}
        alpha, mu, beta = (
            z[..., None, None]
            for z in (*(at[n].exp() for n in ("log_alpha", "log_mu")), at["beta"])
        )
        p, k = alpha[..., 0] * at["p"], at["eta"].unsqueeze(-1) * at["k"]
        error = torch.einsum("bhk,bhkv->bhv", p, S) - at["v"]
        M = mu * M + k.unsqueeze(-1) * error.unsqueeze(-2)
        S = alpha * S - beta * M
        outputs.append(torch.einsum("bhk,bhkv->bhv", at["q"], S) * K**-0.5)
    return torch.stack(outputs, 1), torch.stack([S, M])


def _mesa(x):
    kk, kv, ys = x["h_kk_init"], x["h_kv_init"], []
    for t in range(x["q"].shape[1]):
        q, k, v, beta = (x[n][:, t] for n in ("q", "k", "v", "beta"))
        decay, written = x["g"][:, t].exp()[..., None, None], beta[..., None] * k
        kk = decay * kk + written[..., :, None] * k[..., None, :]
        kv = decay * kv + written[..., :, None] * v[..., None, :]
        solution = torch.linalg.solve(kk + torch.diag_embed(x["lamb"]), q[..., None])
        ys.append((solution.mT @ kv).squeeze(-2))
    return torch.stack(ys, 1), kk, kv


def _log_linear(x):
    ys, decays = [], x["g"].cumsum(1)
    for t in range(x["q"].shape[1]):
        y = 0
        for j in range(t + 1):
            level = (t ^ j).bit_length()
            weight = (x["q"][:, t] * x["k"][:, j]).sum(-1) * (decays[:, t] - decays[:, j]).exp()
            y = y + (x["level_scales"][:, t, :, level] * weight)[..., None] * x["v"][:, j]
        ys.append(y)
    return torch.stack(ys, 1)


def tensors(results):
    if isinstance(results, Tensor):
        return [results]
    return [y for x in results if x is not None for y in tensors(x)]


@pytest.mark.parametrize("name", NAMES)
def test_a_function_is_its_recurrence_with_all_gradients(name):
    x = arguments(name)
    results, expected = tensors(getattr(fla, name)(**x)), tensors(loop(name, x))
    count = min(len(results), len(expected))  # a parallel form returns no state, a sum has none
    results, expected = results[:count], expected[:count]
    torch.testing.assert_close(results, expected, rtol=1e-9, atol=1e-9)
    leaves = [y for y in x.values() if isinstance(y, Tensor) and y.requires_grad]
    weights = [torch.randn_like(y) for y in expected]
    sums = [
        sum((y * w).sum() for y, w in zip(ys, weights, strict=True)) for ys in (results, expected)
    ]
    pairs = (torch.autograd.grad(total, leaves) for total in sums)
    for gradient, of_loop in zip(*pairs, strict=True):
        torch.testing.assert_close(gradient, of_loop, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", [n for n in NAMES if "cu_seqlens" in fla.signature(n).parameters])
def test_packed_sequences_are_those_apart(name):
    if name == "chunk_abc" or SYSTEMS[name] == "mesa_net":
        pytest.skip("it has no packed form")
    x = {n: y.detach() if isinstance(y, Tensor) else y for n, y in arguments(name).items()}
    cuts = [0, 3, 3 + T - 3]
    n = x.get("num_householder", 1)
    longer = {"k", "v", "beta"} if n > 1 else set()

    def part(key, y, start, end, row):
        if y is None:
            return None
        if key in ("initial_state", "initial_A_state"):
            if SYSTEMS[name] == "momentum_delta_rule":
                return y[:, row : row + 1]
            return tuple(z[row : row + 1] for z in y) if isinstance(y, tuple) else y[row : row + 1]
        if isinstance(y, Tensor) and y.ndim >= 3:
            m = n if key in longer else 1
            return y[:1, m * start : m * end]
        return y

    pieces = [
        tensors(getattr(fla, name)(**{k: part(k, y, start, end, i) for k, y in x.items()}))
        for i, (start, end) in enumerate(itertools.pairwise(cuts))
    ]
    together = {
        k: y[:1] if isinstance(y, Tensor) and y.ndim >= 3 and "initial" not in k else y
        for k, y in x.items()
    }
    packed = tensors(getattr(fla, name)(**together, cu_seqlens=torch.tensor(cuts)))
    torch.testing.assert_close(packed[0], torch.cat([p[0] for p in pieces], 1))
    for i, last in enumerate(packed[1:], 1):
        # what is left of each step's stick, and two states one behind the other
        along = 1 if SYSTEMS[name] in ("stick_breaking", "momentum_delta_rule") else 0
        torch.testing.assert_close(last, torch.cat([p[i] for p in pieces], along))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_outputs_have_the_dtype_of_the_queries_and_states_are_wide(dtype):
    q, k, v = torch.randn(3, 1, 5, 2, 4).to(dtype).unbind(0)
    g, beta = F.logsigmoid(torch.randn(1, 5, 2)), torch.rand(1, 5, 2).to(dtype)
    o, last = fla.chunk_gated_delta_rule(q, F.normalize(k, dim=-1), v, g, beta, None, None, True)
    assert (o.dtype, last.dtype) == (dtype, torch.float32)
    o, last = fla.fused_recurrent_gla(q, k, v, gk=g.unsqueeze(-1).expand(q.shape))
    assert o.dtype == dtype
    assert last is None


RATED = [
    n for n in NAMES if SYSTEMS[n] in ("delta_rule", "gated_delta_rule", "kda", "comba")
    or (SYSTEMS[n] == "preconditioned_delta_rule" and n.startswith("fused"))
]  # fmt: skip


@pytest.mark.parametrize("name", RATED)
def test_rates_may_be_those_of_value_channels(name):
    x = arguments(name)
    x["beta"] = torch.rand(B, T, H, V, dtype=F64)

    def each_column(c):
        """The same with the rates of one column, as rates of heads."""
        there = x | {"beta": x["beta"][..., c]}
        there["v"] = x["v"][..., c : c + 1]
        if "gv" in x:
            there["gv"] = x["gv"][..., c : c + 1]
        start = x.get("initial_state")
        return there if start is None else there | {"initial_state": start[..., c : c + 1]}

    results = tensors(getattr(fla, name)(**x))
    columns = [tensors(getattr(fla, name)(**each_column(c))) for c in range(V)]
    for i in (0, 1):
        torch.testing.assert_close(results[i], torch.cat([y[i] for y in columns], -1))


def test_values_may_share_keys_and_a_state_may_have_values_first():
    q, k = torch.randn(2, 1, 6, 2, 4).unbind(0)
    v, beta, g = torch.randn(1, 6, 4, 3), torch.randn(1, 6, 4), torch.randn(1, 6, 4)
    h, rate, bias = torch.randn(1, 4, 4, 3), torch.randn(4), torch.randn(4)
    options = {"use_qk_l2norm_in_kernel": True, "use_beta_sigmoid_in_kernel": True}
    options |= {"allow_neg_eigval": True, "output_final_state": True}
    gate = {"use_gate_in_kernel": True, "A_log": rate, "dt_bias": bias}
    o, last = fla.fused_recurrent_gated_delta_rule(
        q, k, v, g=g, beta=beta, initial_state=h.mT, state_v_first=True, **options, **gate
    )

    def unit(x):
        return (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()).repeat_interleave(2, 2)

    decay = -rate.exp() * F.softplus(g + bias)
    expected, memory = fla.chunk_gated_delta_rule(
        unit(q), unit(k), v, decay, 2 * beta.sigmoid(), 0.5, h, True
    )
    torch.testing.assert_close(o, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(last.mT, memory, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lower_bound", [None, -5.0])
def test_a_gate_inside_is_the_one_outside(lower_bound):
    q, k, g = torch.randn(3, 1, 6, 2, 4).unbind(0)
    v, beta, rate, bias = (
        torch.randn(1, 6, 2, 3),
        torch.rand(1, 6, 2),
        torch.randn(2),
        torch.randn(8),
    )
    slope, shifted = rate.exp().view(2, 1), g + bias.view(2, 4)
    decay = -slope * F.softplus(shifted)
    if lower_bound is not None:
        decay = lower_bound * torch.sigmoid(slope * shifted)
    inside = {"use_gate_in_kernel": True, "A_log": rate, "dt_bias": bias}
    o, _ = fla.chunk_kda(q, k, v, g, beta, lower_bound=lower_bound, **inside)
    torch.testing.assert_close(o, fla.fused_recurrent_kda(q, k, v, decay, beta)[0])


def test_what_only_their_kernels_know_changes_nothing_or_is_refused():
    q = torch.randn(1, 3, 1, 2)
    hints = {"chunk_size": 16, "cu_seqlens_cpu": None}
    assert torch.equal(fla.chunk_simple_gla(q, q, q)[0], fla.chunk_simple_gla(q, q, q, **hints)[0])
    beta = torch.rand(1, 3, 1)
    with pytest.raises(ArgumentError, match=r"chunk_kda: return_intermediate_states must be left"):
        fla.chunk_kda(q, q, q, q, beta, return_intermediate_states=True)


@pytest.mark.unchecked
def test_bad_calls_say_what_is_expected():
    q = torch.randn(1, 3, 1, 2)
    with pytest.raises(
        ArgumentError, match=r"chunk_gla: the arguments must be q, k, v, g, .*head_first"
    ):
        fla.chunk_gla(q, q, q, q, head_first=True)
    with pytest.raises(ArgumentError, match=r"beta must have shape \(batch, time, heads\)"):
        fla.fused_recurrent_gated_oja_rule(q, q, q, beta=q)
    with pytest.raises(ArgumentError, match="A_log must be given with use_gate_in_kernel"):
        fla.chunk_kda(q, q, q, q, q[..., 0], use_gate_in_kernel=True)
    with pytest.raises(ArgumentError, match="slots without g must begin with one sequence a row"):
        fla.fused_recurrent_gsa(q, q, q, q, initial_state=(q, q))
    with pytest.raises(AttributeError, match="no function 'chunk_nothing'"):
        _ = fla.chunk_nothing
    with pytest.raises(UnknownNameError, match="chunk_gla"):
        fla.signature("chunk_glb")
    assert "chunk_gla" in dir(fla)


def test_on_a_gpu_their_function_is_called_where_it_is_installed(monkeypatch):
    class OnGpu(Tensor):
        is_cuda = True

    def module(name, **members):
        made = types.ModuleType(name)
        made.__spec__ = importlib.machinery.ModuleSpec(name, None)
        made.__path__ = []
        vars(made).update(members)
        monkeypatch.setitem(sys.modules, name, made)

    module("fla")
    module("fla.ops", chunk_gla=lambda *args, **options: ("theirs", len(args), options))
    module("fla.ops.gdn2", chunk_gdn2=lambda *args, **options: "theirs")
    x = torch.randn(1, 2, 1, 2)
    on_gpu = x.as_subclass(OnGpu)
    assert fla.chunk_gla(on_gpu, x, x, x, scale=2.0) == ("theirs", 4, {"scale": 2.0})
    assert fla.chunk_gdn2(on_gpu, x, x, x, x, x) == "theirs"
    assert isinstance(fla.chunk_gla(x, x, x, x)[0], Tensor)


def test_signatures_are_written_as_in_python():
    assert str(fla.signature("fused_recurrent_hgrn")) == (
        "(x, g, initial_state=None, output_final_state=False, cu_seqlens=None)"
    )
    assert set(_fla_ops.Call._fields) >= {"scale", "initial_state", "cu_seqlens"}
    assert len(NAMES) == len(set(NAMES)) > 40
