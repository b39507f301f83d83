"""A law that cannot fail is worse than none: break one thing for each law and see it caught."""

import inspect
import math
from functools import partial

import pytest
import torch

from linrnn import testing
from linrnn.mixers import GAU, LRU, RWKV4, RWKV7, S4D, ComplexRWKV, MinGRU, SelectiveLRU
from linrnn.mixers._contract.starts import LearnedStart
from linrnn.ops.linear import tree
from linrnn.ops.linear.linear_scan import _tree as _scan_tree
from linrnn.testing import MIXER_PROPERTIES, OP_PROPERTIES, BrokenPropertyError, check_property


class ForgetsState(LRU):
    """forms_agree: starts from zero instead of the state it was given."""

    def forward(self, x, state=None, *, reset=None):
        return super().forward(x, None, reset=reset)


class DropsStateGradient(LRU):
    """forms_agree: right numbers, but no gradient reaches the initial state."""

    def forward(self, x, state=None, *, reset=None):
        return super().forward(x, None if state is None else state.detach(), reset=reset)


class LooksAhead(LRU):
    """causal: every output sees the next input."""

    def forward(self, x, state=None, *, reset=None):
        y, state = super().forward(x, state, reset=reset)
        return y + 0.01 * torch.roll(x, -1, 1), state


class HidesThePast(LRU):
    """causal: what it reads of the next input is multiplied by zero, which NaN survives."""

    def forward(self, x, state=None, *, reset=None):
        y, state = super().forward(x, state, reset=reset)
        return y + 0 * torch.roll(x, -1, 1), state


class DeniesItsErrors(S4D):
    """causal: one of its forms is an FFT."""

    declared = {}  # noqa: RUF012


class MasksAfterwards(S4D):
    """causal: a product with the zeros of a triangle."""

    def forward(self, x, state=None, *, reset=None):
        y, state = super().forward(x, state, reset=reset)
        return y + torch.zeros(x.shape[1], x.shape[1], dtype=x.dtype) @ x, state


class IgnoresReset(LRU):
    """reset_and_packing: packed sequences leak into each other."""

    def forward(self, x, state=None, *, reset=None):
        return super().forward(x, state)


class MixesRows(LRU):
    """batch_independence: normalises over the batch."""

    def forward(self, x, state=None, *, reset=None):
        return super().forward(x - x.mean(0), state, reset=reset)


class WrongGradient(LRU):
    """gradients: a backward that is off by a tenth of a percent."""

    def forward(self, x, state=None, *, reset=None):
        y, state = super().forward(x, state, reset=reset)
        return y.detach() + 1.001 * (y - y.detach()), state


class _TakesOutTwice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        ctx.save_for_backward(y)
        return y.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * (1 + (ctx.saved_tensors[0] - ctx.saved_tensors[0]))


class KnowsNoTangentInSingle(LRU):
    """higher_derivatives: a kernel that float32 alone has is without forward mode."""

    def _read(self, x, h0, reset, dt):
        y, state = super()._read(x, h0, reset, dt)
        return (_TakesOutTwice.apply(y) if y.dtype == torch.float32 else y), state


class CannotBeCheckpointed(LRU):
    """gradients: its backward pass reads `saved_tensors` twice."""

    def forward(self, x, state=None, *, reset=None):
        y, state = super().forward(x, state, reset=reset)
        return _TakesOutTwice.apply(y), state


class LosesSecondDerivative(LRU):
    """higher_derivatives: a factor is detached, as in a gradient computed by hand."""

    def forward(self, x, state=None, *, reset=None):
        y, state = super().forward(x, state, reset=reset)
        return y * y.detach(), state


class StartsAtZero(LRU):
    """trains: its output is zero until something else moves, and nothing else does."""

    def reset_parameters(self):
        super().reset_parameters()
        torch.nn.init.zeros_(self.C)
        torch.nn.init.zeros_(self.D)


class HasSpareParameter(LRU):
    """trains: a parameter that nothing depends on."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.spare = torch.nn.Parameter(torch.ones(3))


class ClimbsUp(LRU):
    """trains: the gradients of its parameters have the wrong sign."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for parameter in self.parameters():
            parameter.register_hook(torch.neg)


class Overflows(LRU):
    """finite_when_long: an unstable mode."""

    def eigenvalues(self):
        return super().eigenvalues() * 2


class GrowingState(LRU):
    """constant_memory: keeps everything it read."""

    def forward(self, x, state=None, *, reset=None):
        y, state = super().forward(x, state, reset=reset)
        return y, {"h": state, "history": x}


class HidesParameter(LRU):
    """round_trip: a number that matters and is in no state_dict."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.gain = torch.rand(()).item()

    def forward(self, x, state=None, *, reset=None):
        y, state = super().forward(x, state, reset=reset)
        return y * self.gain, state


class KeepsLocalFunction(LRU):
    """round_trip: no pickle can name the function."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.widen = lambda x: x


class StoresDecay(LRU):
    """low_precision: a decay kept in the storage dtype, where 0.999 is 1."""

    def eigenvalues(self):
        lam = super().eigenvalues()
        low = self.C.dtype
        return torch.complex(lam.real.to(low).to(lam.real), lam.imag.to(low).to(lam.real))


class BreaksGraph(LRU):
    """compiles: Python control flow on a value."""

    def forward(self, x, state=None, *, reset=None):
        y, state = super().forward(x, state, reset=reset)
        return (y if float(y.sum()) > 0 else y + 0), state


class FixesBatch(LRU):
    """dynamic_shapes: the length of a tensor is a number, and the graph's."""

    def forward(self, x, state=None, *, reset=None):
        return super().forward(x.view(len(x), *x.shape[1:]), state, reset=reset)


class UnrollsTime(LRU):
    """dynamic_shapes: a loop over time is written down step by step."""

    def forward(self, x, state=None, *, reset=None):
        return super().forward(torch.stack(list(x.unbind(1)), 1), state, reset=reset)


class CountsBlocks(LRU):
    """dynamic_shapes: right for every batch, but only up to 32 steps."""

    def forward(self, x, state=None, *, reset=None):
        y, state = super().forward(x, state, reset=reset)
        return (y if x.shape[1] <= 32 else y + 0), state


class LetsItselfBeTraced(LRU):
    """untraceable: asks nobody whether it is written down."""

    def forward(self, x, state=None, *, reset=None):
        return x * self.D, x[:, -1] if state is None else state


class ReadsNumbers(LRU):
    """meta_device: looks at a value."""

    def forward(self, x, state=None, *, reset=None):
        y, state = super().forward(x, state, reset=reset)
        return y * float(x.isfinite().all()), state


class ReadsNumbersWhenBuilt(LRU):
    """meta_device: looks at a value that it has drawn where tensors are without memory."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.gain = torch.rand(()).item()


class StaysEmpty(LRU):
    """meta_device: a parameter that is never filled."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.gain = torch.nn.Parameter(torch.ones_like(self.D))

    def forward(self, x, state=None, *, reset=None):
        y, state = super().forward(x, state, reset=reset)
        return y * self.gain, state


class ForgetsABuffer(LRU):
    """meta_device: a buffer that is never filled, and that a first output does not show."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.register_buffer("drawn", torch.ones_like(self.D))


class DrawsElsewhere(LRU):
    """meta_device: what scales its parameters is drawn on a CPU, which a GPU would not take."""

    def reset_parameters(self):
        super().reset_parameters()
        with torch.no_grad():
            self.D.mul_(torch.rand(self.D.shape))


class ReadsFromElsewhere(LRU):
    """meta_device: a constant of its call lies on a CPU."""

    def forward(self, x, state=None, *, reset=None):
        return super().forward(x * torch.ones(x.shape[-1], dtype=x.dtype), state, reset=reset)


class IgnoresResetOfAnOption(LRU):
    """every_option: right with the defaults."""

    def forward(self, x, state=None, *, reset=None):
        return super().forward(x, state, reset=reset if self.gamma else None)


class MixesKindsOfNumbers(SelectiveLRU):
    """every_option: a choice between a real and a complex number has no gradient."""

    def _run_scan(self, z, b, start, reset):
        if reset is not None and self.learn_initial:
            b = torch.where(reset[..., None], start[:, None], b)
        return super()._run_scan(z, b, start, reset)


class Untaught(LearnedStart):
    """Initial states that no gradient reaches."""

    def of(self, layer, part):
        return super().of(layer, part).detach()


class Muted(LearnedStart):
    """Initial states whose gradients are all zero."""

    def of(self, layer, part):
        start = super().of(layer, part)
        return start.detach() + 0 * start


class StartIsNotLearned(SelectiveLRU):
    """zeros_begin_anew: right numbers, but no gradient reaches the learned start."""

    learned = Untaught("h", pairs=True)


class StartLearnsNothing(SelectiveLRU):
    """zeros_begin_anew: right numbers, but the gradient of the learned start is zero."""

    learned = Muted("h", pairs=True)


class DrawsAsItEvaluates(LRU):
    """every_option: only what trains may draw random numbers."""

    def forward(self, x, state=None, *, reset=None):
        y, state = super().forward(x, state, reset=reset)
        return y * torch.rand_like(y), state


class IgnoresTimeOfAnOption(LRU):
    """every_option: what is no default leaves the time between steps out, but in single steps."""

    def _read(self, x, h0, reset, dt):
        known = self.parametrisation == "stable"
        return super()._read(x, h0, reset, dt if known else None)


class WritesInPlace(LRU):
    """edges: the caller's tensor is changed."""

    def forward(self, x, state=None, *, reset=None):
        y, state = super().forward(x, state, reset=reset)
        with torch.no_grad():
            x.mul_(2)
        return y, state


class CannotBeNarrow(LRU):
    """small: numbers of one channel are viewed from an odd place on."""

    def _read(self, x, h0, reset, dt):
        if self.d_model == 1 and x.shape[1] > 1:
            odd = torch.cat([x.new_zeros(1), x.flatten(), x.flatten()])[1:]
            torch.view_as_complex(odd.view(-1, 2))
        return super()._read(x, h0, reset, dt)


class ForgetsItsOnlyMode(LRU):
    """small: a state of one number is not carried over, but step by step."""

    def _read(self, x, h0, reset, dt):
        alone = self.d_state == 1 and x.shape[1] > 1
        return super()._read(x, torch.zeros_like(h0) if alone else h0, reset, dt)


class AcceptsAnything(LRU):
    """bad_input: a state of the wrong batch is broadcast in silence."""

    def _start(self, state, x, spec):
        fresh = self.init_state(len(x))
        return fresh if state is None else state[:1].expand_as(fresh)


class SwallowsOptions(LRU):
    """bad_input: an option that there is not changes nothing, in silence."""

    def __init__(self, d_model, *, dtype=None, **options):
        options.pop("no_such_option", None)
        super().__init__(d_model, dtype=dtype, **options)


class IgnoresTime(LRU):
    """times: takes every step for one of time 1."""

    def _times(self, call, dt, x):
        super()._times(call, dt, x)
        return (None,)


class CountsTimeTwice(LRU):
    """times: its unit of time is half a step."""

    def _times(self, call, dt, x):
        (dt,) = super()._times(call, dt, x)
        return (None if dt is None else 2 * dt,)


class StepsAlike(LRU):
    """times: a single step knows no time."""

    def _step(self, x_t, h, dt):
        return super()._step(x_t, h, None)


class WaitsAfterwards(LRU):
    """times: the time of a step is that until the next one."""

    def _read(self, x, h0, reset, dt):
        return super()._read(x, h0, reset, None if dt is None else dt.roll(-1, 1))


class CutsTimesGradient(LRU):
    """times: right numbers, but no gradient reaches the times."""

    def _times(self, call, dt, x):
        (dt,) = super()._times(call, dt, x)
        return (None if dt is None else dt.detach(),)


class TimeOfAll(LRU):
    """times: the mean of a batch in the place of each row's."""

    def _read(self, x, h0, reset, dt):
        mean = None if dt is None else dt.mean(0, keepdim=True).expand_as(dt)
        return super()._read(x, h0, reset, mean)


class WidensItsState(LRU):
    """times: those of double precision make the state one of double precision."""

    def _times(self, call, dt, x):
        return (dt if dt is None else super()._times(call, dt, x)[0].double(),)


class TakesAnyTime(LRU):
    """times: what is no time is not refused."""

    def _times(self, call, dt, x):
        return (dt if dt is None else dt.to(torch.float64).abs(),)


class SwallowsTime(RWKV4):
    """times: knows none, and does not say so."""

    def _times(self, call, dt, x):
        return ()


class FormThatIgnoresTime(LRU):
    """times: a form that cannot read them does not refuse them."""

    without_dt = ("conv",)


class GradientOfNothing(LRU):
    """ranges: a decay of 0 has the gradient ``0 * inf``."""

    def eigenvalues(self):
        return torch.polar(torch.exp(-self.nu_log.exp()), self.theta_log.clamp(max=40).exp())


class HasNoSlope(LRU):
    """ranges: large input weights lose their digits, and nothing is infinite."""

    def _project_in(self, x):
        y = super()._project_in(x)
        return (y + 1e7) - 1e7 if y.dtype == torch.float32 else y


class RootOfATime(LRU):
    """times: the gradient of a root is infinite where a time is 0."""

    def _transition(self, dt):
        return super()._transition(None if dt is None else dt.sqrt() ** 2)


class StartsAllOrNone(MinGRU):
    """zeros_begin_anew: a row of zeros goes on from zero while another row goes on."""

    def _all_or_none(self, state):
        fresh = (state == self.start).all(-1, keepdim=True)
        return state if fresh.all() else torch.where(fresh, 0.0, state)

    def _read(self, x, state, reset):
        return super()._read(x, self._all_or_none(state), reset)

    def _step(self, x_t, state):
        return super()._step(x_t, self._all_or_none(state))


class ShiftsItsState(LRU):
    """zeros_begin_anew: it begins with ones."""

    def init_state(self, batch_size, *, device=None, dtype=None):
        return super().init_state(batch_size, device=device, dtype=dtype) + 1


class IgnoresItsSignal(RWKV7):
    """signals: a later layer takes its own values for the first layer's."""

    def _values(self, x, signals):
        own = {"v_first": self.value(x)} if "v_first" in signals else signals
        return super()._values(x, own)


class HandsOnTheLastStep(RWKV7):
    """signals: what it hands on at each step is of the last step of the call."""

    def _values(self, x, signals):
        v, outgoing = super()._values(x, signals)
        return v, {name: z[:, -1:].expand_as(z) for name, z in outgoing.items()}


BROKEN_MIXERS = [
    ("signals", IgnoresItsSignal),
    ("signals", HandsOnTheLastStep),
    ("forms_agree", ForgetsState),
    ("forms_agree", DropsStateGradient),
    ("causal", LooksAhead),
    ("causal", HidesThePast),
    ("causal", DeniesItsErrors),
    ("causal", MasksAfterwards),
    ("reset_and_packing", IgnoresReset),
    ("zeros_begin_anew", StartsAllOrNone),
    ("zeros_begin_anew", ShiftsItsState),
    ("zeros_begin_anew", StartIsNotLearned),
    ("zeros_begin_anew", StartLearnsNothing),
    ("batch_independence", MixesRows),
    ("gradients", WrongGradient),
    ("gradients", CannotBeCheckpointed),
    ("higher_derivatives", LosesSecondDerivative),
    ("higher_derivatives", KnowsNoTangentInSingle),
    ("trains", StartsAtZero),
    ("trains", HasSpareParameter),
    ("trains", ClimbsUp),
    ("trains", partial(RWKV4, init="published")),
    ("trains", partial(ComplexRWKV, init="published")),
    ("trains", partial(GAU, init="published")),
    ("finite_when_long", Overflows),
    ("constant_memory", GrowingState),
    ("round_trip", HidesParameter),
    ("round_trip", KeepsLocalFunction),
    ("low_precision", StoresDecay),
    ("compiles", BreaksGraph),
    ("dynamic_shapes", FixesBatch),
    ("dynamic_shapes", UnrollsTime),
    ("dynamic_shapes", CountsBlocks),
    ("untraceable", LetsItselfBeTraced),
    ("meta_device", ReadsNumbers),
    ("meta_device", ReadsNumbersWhenBuilt),
    ("meta_device", StaysEmpty),
    ("meta_device", ForgetsABuffer),
    ("meta_device", DrawsElsewhere),
    ("meta_device", ReadsFromElsewhere),
    ("every_option", IgnoresResetOfAnOption),
    ("every_option", MixesKindsOfNumbers),
    ("every_option", DrawsAsItEvaluates),
    ("every_option", IgnoresTimeOfAnOption),
    ("edges", WritesInPlace),
    ("small", CannotBeNarrow),
    ("small", ForgetsItsOnlyMode),
    ("bad_input", AcceptsAnything),
    ("bad_input", SwallowsOptions),
    ("times", IgnoresTime),
    ("times", CountsTimeTwice),
    ("times", StepsAlike),
    ("times", WaitsAfterwards),
    ("times", CutsTimesGradient),
    ("times", TimeOfAll),
    ("times", WidensItsState),
    ("times", TakesAnyTime),
    ("times", SwallowsTime),
    ("times", FormThatIgnoresTime),
    ("times", RootOfATime),
    ("ranges", GradientOfNothing),
    ("ranges", HasNoSlope),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("law", "broken"), BROKEN_MIXERS, ids=lambda x: getattr(x, "__name__", x))
def test_broken_mixer_is_caught(law, broken):
    def make(**options):
        if law == "low_precision":  # where rounding a decay shows: memories of 1,000 steps
            options |= {"r_min": 0.998, "r_max": 0.9995}
        return broken(**options)

    with pytest.raises(BrokenPropertyError):
        check_property(law, make)


@pytest.mark.unchecked
@pytest.mark.parametrize("law", ["compiles", "dynamic_shapes"])
def test_what_a_compiler_refuses_names_the_line_of_the_layer(law):
    with pytest.raises(BrokenPropertyError, match=r"at test_laws_catch\.py:\d+: return \(y if "):
        check_property(law, BreaksGraph)


def test_every_mixer_law_has_a_broken_mixer():
    assert {law for law, _ in BROKEN_MIXERS} == set(MIXER_PROPERTIES)


@pytest.mark.unchecked
def test_a_choice_that_may_turn_excuses_numbers_and_no_infinity():
    """StoresDecay is caught by its numbers, unless it declares a choice; an infinity always is."""

    class Turns(StoresDecay):
        declared = {"low_precision": "a choice may turn"}  # noqa: RUF012

    class Bursts(LRU):
        declared = Turns.declared

        def forward(self, x, state=None, *, reset=None):
            y, state = super().forward(x, state, reset=reset)
            return (y * math.inf if y.dtype == torch.bfloat16 else y), state

    check_property("low_precision", partial(Turns, r_min=0.998, r_max=0.9995))
    with pytest.raises(BrokenPropertyError, match="not finite"):
        check_property("low_precision", Bursts)


def test_stale_declaration_is_caught():
    class Modest(LRU):
        declared = {"causal": "claims to see the future"}  # noqa: RUF012

    with pytest.raises(BrokenPropertyError, match="yet it holds"):
        check_property("causal", Modest)


def test_stale_declaration_of_a_form_is_caught():
    class Modest(LRU):
        declared = {**LRU.declared, "causal:real": "claims to see it"}  # noqa: RUF012

    with pytest.raises(BrokenPropertyError, match="yet it holds"):
        check_property("causal", Modest)


def test_true_declaration_is_accepted():
    class Honest(LooksAhead):
        declared = {"causal": "rolls its input"}  # noqa: RUF012

    check_property("causal", Honest)


def scan_changed(monkeypatch, change):
    """Let the tree's forward pass return what ``change(result, arguments)`` makes of it."""
    original = _scan_tree.forward
    monkeypatch.setattr(_scan_tree, "forward", lambda *args: change(original(*args), args))


def lossy(result, args):
    h, final = result
    return h * (1 + 1e-5), final


def forgets_initial_state(monkeypatch):
    original = _scan_tree.forward
    monkeypatch.setattr(_scan_tree, "forward", lambda a, b, h0, *rest: original(a, b, None, *rest))


def drops_final_gradient(monkeypatch):
    original = _scan_tree.backward
    monkeypatch.setattr(
        _scan_tree,
        "backward",
        lambda *args: original(*args[:-1], args[-1] * 0),
    )


def float32_products(monkeypatch):
    """Equal decays multiplied in working precision: the error doubles at every level."""
    original = _scan_tree.squared_powers

    def naive(a):
        next(original(a))
        while True:
            yield a
            a = a * a

    monkeypatch.setattr(_scan_tree, "squared_powers", naive)


def half_state(monkeypatch):
    scan_changed(monkeypatch, lambda result, args: (result[0], result[1].to(args[1].dtype)))


def leaks_nan(monkeypatch):
    original = tree._carry

    def multiply_by_zero(ring, a, h, live):
        return original(ring, a, h, None) * (1 if live is None else live[..., None])

    monkeypatch.setattr(tree, "_carry", multiply_by_zero)


def noisy(monkeypatch):
    scan_changed(monkeypatch, lambda result, args: (result[0] + torch.rand(()) * 1e-7, result[1]))


def assumes_dense(monkeypatch):
    original = _scan_tree.forward

    def reinterpret(a, b, *rest):
        return original(a, b.as_strided(b.shape, torch.empty(b.shape).stride()), *rest)

    monkeypatch.setattr(_scan_tree, "forward", reinterpret)


def loses_empty_state(monkeypatch):
    from linrnn.ops.linear.linear_scan import op

    def definition(a, b, h0, *rest, backend=None):
        return torch.empty_like(b), torch.zeros_like(h0)

    monkeypatch.setattr(op.linear, "definition", definition)


def wrong_when_compiled(monkeypatch):
    def differs(result, args):
        compiled = torch._C._len_torch_dispatch_stack() > 0 or torch._dynamo.is_compiling()
        inside = any("torch/_dynamo" in f.filename for f in inspect.stack())
        return (result[0] * (1.01 if compiled or inside else 1)), result[1]

    scan_changed(monkeypatch, differs)


BROKEN_BACKENDS = [
    ("matches_loop", forgets_initial_state),
    ("matches_loop", drops_final_gradient),
    ("every_shape", lambda m: scan_changed(m, lossy)),
    ("long_memory", float32_products),
    ("half_precision", half_state),
    ("splits", forgets_initial_state),
    ("gradients", drops_final_gradient),
    ("isolation", leaks_nan),
    ("isolation_across_chunks", leaks_nan),
    ("edges", loses_empty_state),
    ("layouts_in_memory", assumes_dense),
    ("deterministic", noisy),
    ("compiles", wrong_when_compiled),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("law", "break_it"), BROKEN_BACKENDS, ids=lambda x: getattr(x, "__name__", x)
)
def test_broken_backend_is_caught(monkeypatch, law, break_it):
    break_it(monkeypatch)
    with pytest.raises(BrokenPropertyError):
        OP_PROPERTIES[law]("tree")


def test_every_op_law_has_a_broken_backend():
    assert {law for law, _ in BROKEN_BACKENDS} == set(OP_PROPERTIES)


def test_unwritten_output_is_caught(monkeypatch):
    def leaves_a_hole(result, args):
        hole = torch.empty_like(result[0])
        hole[:, 1:] = result[0][:, 1:]
        return hole, result[1]

    scan_changed(monkeypatch, leaves_a_hole)
    with pytest.raises(BrokenPropertyError):
        OP_PROPERTIES["matches_loop"]("tree")


@pytest.mark.parametrize("former", ["MIXER_LAWS", "OP_LAWS", "BrokenLawError", "check_law"])
def test_former_names_warn_and_work(former):
    with pytest.warns(FutureWarning, match=rf"linrnn\.testing\.{former} is called (\w+)") as caught:
        member = getattr(testing, former)
    current = str(caught[0].message).split(" is called ")[1].split(";")[0]
    assert member is getattr(testing, current)
    assert former not in dir(testing)
