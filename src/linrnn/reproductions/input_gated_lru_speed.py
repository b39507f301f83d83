"""An input-gated LRU step by step, by cumulative sums and by a scan; where the sums overflow."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from linrnn.ops import linear_scan
from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.runs import Runs
from linrnn.reproductions._page.verdict import Judged
from linrnn.reproductions._runs.timing import (
    DEVICE,
    NO_VALUE,
    Call,
    Timing,
    Turns,
    conditions,
    device,
    faster,
    over_lengths,
    published_on_gpu,
    ratio,
    rounds,
    times,
)

D_HIDDEN, D_INPUT, TIME = 256, 64, 64
DECAYS = (0.9, 0.5, 0.1, 0.01, 0.001)
_BASELINE, _SUMS = "loop, as published", "cumulative sums"
_PUBLISHED = "about 50×"


class Demonstration(NamedTuple):
    """Random numbers drawn as in the post; nothing has a batch axis."""

    x: Tensor  # (T, D)
    U: Tensor  # (H, D)
    W: Tensor  # (H, D)
    nu: Tensor  # (H,)
    theta: Tensor  # (H,)
    h0: Tensor  # (H,)


class Overflow(NamedTuple):
    """Effect of one decay on the two parallel forms; steps are counted from 1."""

    formula: float
    """Step after which exp(nu t) is no number of its dtype: ln(largest) / nu."""
    first: int | None
    """Step of the first state of the cumulative sums that is not finite."""
    error: float
    """Largest of the cumulative sums' states before it, relative to the largest state."""
    scan_error: float
    """Error of the scan over twice the steps; NaN or infinite if it is not finite."""
    length: int
    """Steps read."""


def draw(time: int, d_hidden: int, d_input: int, seed: int, where: torch.device) -> Demonstration:
    """U, W ~ 1e-3 N(0, 1), nu from 0.1 to 0.9, theta_k = 2 pi k / H, x and h_0 ~ N(0, 1)."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(where)

    angles = 2 * math.pi * torch.arange(d_hidden, dtype=torch.float64) / d_hidden
    return Demonstration(
        x=normal(time, d_input),
        U=normal(d_hidden, d_input) / 1000,
        W=normal(d_hidden, d_input) / 1000,
        nu=torch.linspace(0.1, 0.9, d_hidden).to(where),
        theta=angles.float().to(where),
        h0=normal(d_hidden),
    )


def loop_as_published(d: Demonstration) -> Tensor:
    """``Re h_t``, (T, H): both products with the input are inside the loop."""
    out = torch.empty(len(d.x), len(d.nu), device=d.x.device, dtype=d.x.dtype)
    h, constant = torch.complex(d.h0, torch.zeros_like(d.h0)), torch.complex(d.nu, d.theta)
    for t, x_t in enumerate(d.x):
        h = torch.exp(d.U @ x_t - constant) * h + d.W @ x_t
        out[t] = h.real
    return out


def loop_hoisted(d: Demonstration) -> Tensor:
    """Run the loop with everything that needs no state computed before it."""
    a, b = torch.exp(_exponents(d)), d.x @ d.W.T
    h, states = torch.complex(d.h0, torch.zeros_like(d.h0)), []
    for a_t, b_t in zip(a.unbind(0), b.unbind(0), strict=True):
        h = torch.addcmul(b_t, a_t, h)
        states.append(h)
    return torch.stack(states).real  # (T, H)


def cumulative_sums(d: Demonstration) -> Tensor:
    """``Re exp(G_t) (h_0 + sum_{s<=t} exp(-G_s) W x_s)``, G the running sum of the exponents."""
    return cumsum_states(_exponents(d), d.x @ d.W.T, d.h0).real


def scan(d: Demonstration) -> Tensor:
    """The loop's numbers by `linear_scan`."""
    u, b = (d.x @ torch.cat([d.U, d.W]).T).chunk(2, -1)  # (T, H) each
    a = torch.polar(torch.exp(u - d.nu), (-d.theta).expand_as(u))
    return linear_scan(a[None], b[None], d.h0[None].to(a.dtype))[0][0].real


FORMS: dict[str, Callable[[Demonstration], Tensor]] = {
    _BASELINE: loop_as_published,
    "loop, products hoisted": loop_hoisted,
    _SUMS: cumulative_sums,
    "linear_scan": scan,
}


def cumsum_states(g: Tensor, b: Tensor, h0: Tensor) -> Tensor:
    """Complex states (T, H) of ``h_t = exp(g_t) h_{t-1} + b_t``, with nothing against overflow."""
    total = g.cumsum(0)
    return torch.exp(total) * (h0 + (torch.exp(-total) * b).cumsum(0))


def overflow(nu: float, dtype: torch.dtype, theta: float = 1.0) -> Overflow:
    """Read ones with ``exp(-nu - i theta)`` for a decay, and look where numbers end.

    Args:
        nu: decay of the logarithm a step, above 0.
        dtype: float32 or float64: of the parts of the complex numbers.
        theta: radians a step.
    """
    formula = math.log(torch.finfo(dtype).max) / nu
    length = 2 * math.ceil(formula)
    g = torch.full((length, 1), -nu, dtype=dtype) - 1j * theta
    b = torch.ones(length, 1, dtype=g.dtype)
    exact = _geometric(nu, theta, length)
    sums = cumsum_states(g, b, torch.zeros(1, dtype=g.dtype))
    bad = (~torch.isfinite(sums)).flatten().nonzero()
    first = int(bad[0]) if len(bad) else None
    scanned = linear_scan(torch.exp(g[0]), b[None])[0][0]  # (T, 1)
    return Overflow(
        formula=formula,
        first=None if first is None else first + 1,
        error=_error(sums[:first], exact[:first]),
        scan_error=_error(scanned, exact),
        length=length,
    )


class InputGatedLRUSpeed(Reproduction):
    """``h_t = exp(U x_t - nu - i theta) h_{t-1} + W x_t``, output ``Re h_t``, forward only."""

    summary: ClassVar[str] = "an input-gated LRU: loop against parallel form, and its overflow"
    source: ClassVar[str] = (
        "a blog post of 2023 on the LRU and RWKV: timing of its demonstration of an LRU whose "
        "decay depends on the input"
    )
    scales: ClassVar[Mapping[str, str]] = {
        "paper": (
            "the published sizes, and longer; forward passes of seconds in all, on the device "
            "there is"
        )
    }
    hours: ClassVar[tuple[str, ...]] = ()
    published: ClassVar[tuple[Table, ...]] = (
        Table(
            "Times faster than the loop, T = 64, D_h = 256, D_x = 64, no batch, laptop RTX 3070",
            ["", "T = 64"],
            [[f"{_SUMS} against the loop", _PUBLISHED]],
        ),
    )

    def __init__(
        self,
        lengths: Sequence[int] = (TIME, 256, 1024, 4096),
        d_hidden: int = D_HIDDEN,
        decays: Sequence[float] = DECAYS,
        turns: Turns | None = None,
    ) -> None:
        self.lengths, self.d_hidden, self.decays = lengths, d_hidden, decays
        self.turns = turns or Turns(rounds=15)

    def run(self, setting: Setting) -> Findings:
        """Time the forms at rising lengths, then look for overflows."""
        inputs = {
            time: draw(time, self.d_hidden, D_INPUT, setting.seeds[0], device())
            for time in self.lengths
        }
        timings = over_lengths(
            self.turns, list(FORMS), self.lengths, lambda n, t: _call(n, inputs[t]), setting.say
        )
        heads = list(map(_at, self.lengths))
        ratios = [_faster(name, timings) for name in list(FORMS)[1:]]
        published = published_on_gpu(_PUBLISHED)
        ratios.append(
            [f"published, {_SUMS}", *(published if t == TIME else NO_VALUE for t in timings)]
        )
        errors = [[name, *(_deviation(name, d) for d in inputs.values())] for name in FORMS]
        by_part = {_at(time): forms for time, forms in timings.items()}
        runs = Runs(tuple(rounds(by_part, setting.scale)))
        return Findings(
            tables=(
                Table("Forward pass [ms]", ["form", *heads], _milliseconds(timings)),
                Table("Times faster than the loop as published", ["form", *heads], ratios),
                Table("Largest error, relative to the largest output", ["form", *heads], errors),
                _overflows(self.decays),
            ),
            runs=runs,
            verdicts=tuple(self.claims(runs, setting.scale)),
            comparable=(
                "the ratio of cumulative sums to the loop as published at T = 64, with the caveat "
                "of the device; what hoisting two products out of the loop leaves of it is ours."
            ),
            notes=(
                conditions(self.turns),
                "as published: U, W ~ 1e-3 N(0, 1), nu from 0.1 to 0.9, theta_k = 2 pi k / D_h, "
                "x and h_0 ~ N(0, 1); errors are against the loop in float64.",
                "the sums need exp(nu t) where U x is small, which ends at ln(largest number) / nu "
                "steps: 88.7 / nu in float32, 709.8 / nu in float64. linear_scan multiplies "
                "decays and has no such end.",
                '`SelectiveLRU(form="cumsum")` refuses a call near that range.',
            ),
        )

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """Whether cumulative sums are faster at the published length."""
        if TIME not in self.lengths:
            return []
        where = _at(TIME)
        text = f"{where}: {_SUMS} are faster than the loop as published"
        part = runs.part(where, DEVICE)
        return [faster(part, _SUMS, _BASELINE, text, f"{_PUBLISHED} on a GPU")]


def _at(time: int) -> str:
    return f"T = {time}"


def _call(name: str, d: Demonstration) -> Call:
    form = FORMS[name]

    @torch.inference_mode()
    def call() -> object:
        return form(d)

    return call


def _exponents(d: Demonstration) -> Tensor:
    """``U x_t - nu - i theta``, (T, H)."""
    return d.x @ d.U.T - torch.complex(d.nu, d.theta)


def _geometric(nu: float, theta: float, length: int) -> Tensor:
    """States of an input of ones, (T, 1), by the sum of the geometric series in double."""
    g = torch.tensor(-nu - 1j * theta, dtype=torch.complex128)
    steps = torch.arange(1, length + 1, dtype=torch.float64)
    return ((1 - torch.exp(g * steps)) / (1 - torch.exp(g)))[:, None]


def _error(got: Tensor, exact: Tensor) -> float:
    """Largest difference, relative to the largest exact number; not finite if ``got`` is not."""
    return float((got.to(exact.dtype) - exact).abs().amax() / exact.abs().amax())


def _deviation(name: str, d: Demonstration) -> str:
    exact = loop_hoisted(Demonstration(*(z.double().cpu() for z in d)))
    error = _error(FORMS[name](d).double().cpu(), exact)
    return f"{error:.1e}" if math.isfinite(error) else "not finite"


def _milliseconds(timings: Mapping[int, Mapping[str, Timing]]) -> list[list[str]]:
    return [[name, *(t[name].milliseconds() for t in timings.values())] for name in FORMS]


def _faster(name: str, timings: Mapping[int, Mapping[str, Timing]]) -> list[str]:
    return [name, *(times(ratio(t[_BASELINE], t[name])) for t in timings.values())]


def _overflows(decays: Sequence[float]) -> Table:
    rows = []
    for dtype in (torch.float32, torch.float64):
        for nu in decays:
            case = overflow(nu, dtype)
            scan_error = case.scan_error
            rows.append(
                [
                    f"{nu:g}, {str(dtype).removeprefix('torch.')}",
                    f"{case.formula:.1f}",
                    NO_VALUE if case.first is None else str(case.first),
                    f"{case.error:.1e}",
                    str(case.length),
                    f"{scan_error:.1e}" if math.isfinite(scan_error) else "not finite",
                ]
            )
    head = ["nu, dtype", "ln(largest) / nu", "sums: first step not finite", "their error before"]
    head += ["scan: steps read", "its error"]
    return Table("Where cumulative sums overflow, U = 0, an input of ones", head, rows)
