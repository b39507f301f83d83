"""Steps that are learned from as they come: programs of derivatives, and traces in one pass."""

import copy
from contextlib import suppress
from functools import partial
from types import MethodType

import pytest
import torch
from test_traces import APART
from torch import nn
from torch.nn.functional import mse_loss

from linrnn import SequenceModel, learn
from linrnn.compute import native as _native
from linrnn.engine.replay.program import operations
from linrnn.errors import ShapeError
from linrnn.learn import Batch, Loop
from linrnn.learn._exact.owners import NotDiagonalError, owners, tensors
from linrnn.learn._exact.step_derivatives import Stepped, stepped
from linrnn.learn._exact.stepwise import Call
from linrnn.mixers import MinGRU, build, load
from linrnn.mixers._contract.added import added_losses
from linrnn.state import leaves, map_state
from linrnn.testing._options import option_sets

F32, F64 = torch.float32, torch.float64
TOLERANCE = {F64: 1e-12, F32: 2e-5}
native = pytest.mark.skipif(
    _native.load()[0] is None or not operations(),
    reason="the native kernels are not installed, or not these",
)


def layers_of(mixer):
    """With all options of which channels are apart."""
    for options in option_sets(load(mixer)):
        layer = build(mixer, 6, options).eval()
        with suppress(NotDiagonalError):
            owners(layer)
            yield options, layer


def step_of(layer, dtype, rows=3):
    """A step of a layer, with traces that are not zero."""
    torch.manual_seed(0)
    found = stepped(layer)
    assert isinstance(found, Stepped)
    state = map_state(lambda h: h + torch.randn_like(h) / 3, layer.init_state(rows))
    x = torch.randn(rows, layer.d_model, dtype=dtype)
    timed = layer.timed and getattr(layer, "form", "") not in layer.without_dt
    dt = torch.rand(rows, dtype=dtype) + 0.5 if timed else None
    call = Call(layer, found, {}, x, state, dt)
    traces = {n: torch.randn_like(call._trace(n)) for n in found.named}
    return partial(Call, layer, found, traces, x, state, dt)


@native
@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("mixer", APART)
def test_derivatives_of_a_step_are_one_program(mixer, dtype):
    check_program(build(mixer, 6).to(dtype).eval(), dtype)


@native
@pytest.mark.slow
@pytest.mark.parametrize("mixer", APART)
def test_derivatives_of_a_step_are_one_program_with_any_options(mixer):
    for options, layer in layers_of(mixer):
        check_program(layer.double(), F64, options)


def check_program(layer, dtype, options=None):
    begin = step_of(layer, dtype)
    call = begin()
    credit = {"y": torch.randn_like(call.y)}
    credit |= {str(i): torch.randn_like(h) for i, h in enumerate(tensors(call.after))}
    wanted = ["x", *(str(i) for i in range(len(tensors(call.state))))]
    for some in (credit, {}):
        got = begin()._derivatives(some, wanted if some else [])
        kind = [*call.known.kinds.values()][-1]
        assert kind.program is not None, (options, kind.reason)
        plain = begin()
        plain._recordable = lambda given: False
        want = plain._derivatives(some, wanted if some else [])
        # a record makes 0 of a gradient that there is none of: a learned start, by a later step
        assert want.keys() <= got.keys()
        assert not any(got[name].any() for name in got.keys() - want.keys())
        for name, z in want.items():
            most = TOLERANCE[dtype] * max(1.0, z.abs().max().item())
            torch.testing.assert_close(
                got[name], z, rtol=TOLERANCE[dtype], atol=most, msg=f"{options}: {name}"
            )


def learned(model, name, batch, options=None, **more):
    """Gradients, and what the learner remembers."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(3)
    rule = learn.build(name, options or {})
    step = rule.step(model, batch, None, Loop(mse_loss, **more))
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return found, rule, step


def model_of(mixer="lru", dtype=F64, **options):
    torch.manual_seed(0)
    options = {"d_model": 6, "n_layers": 1, "norm": "layer", "pool": "none"} | options
    return SequenceModel(2, 3, mixer=mixer, **options, dtype=dtype)


def batch_of(model, time=7, rows=3, **more):
    random = torch.Generator().manual_seed(1)
    x, target = (torch.randn(rows, time, n, generator=random).to(F64) for n in (2, 3))
    dtype = model.head.weight.dtype
    target = target[:, -1] if model.pool.kind == "last" else target
    return Batch(x.to(dtype), target.to(dtype), None, more.get("reset"), more.get("dt"))


def check_equal(found, wanted, tolerance=1e-10):
    assert found.keys() == wanted.keys()
    for name, g in wanted.items():
        torch.testing.assert_close(found[name], g, rtol=tolerance, atol=tolerance, msg=name)


def by_windows(model, batch):
    """The same numbers another way: windows of one step, each with its graph."""
    return learned(model, "chunked_rtrl", batch, {"window": 1})


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mixer", APART)
def test_steps_learn_as_windows_of_one_step_do(mixer):
    # bounds that layers have in common are credit beside the stream, which is refused
    options = {"lower_bound": "layer"} if mixer == "hgrn" else {}
    model = model_of(mixer, n_layers=2, mixer_options=options)
    reset = torch.rand(3, 7, generator=torch.Generator().manual_seed(2)) < 0.3
    dt = torch.rand(3, 7, dtype=F64) + 0.5 if load(mixer).timed else None
    for batch in (batch_of(model, reset=reset, dt=dt), batch_of(model)):
        found, _, step = learned(model, "diagonal_rtrl", batch)
        wanted, _, other = by_windows(model, batch)
        check_equal(found, wanted)
        check_equal(dict(enumerate(leaves(step.state))), dict(enumerate(leaves(other.state))))


@pytest.mark.parametrize("mixer", ["gated_lru", "qrnn"])
def test_what_a_sequence_begins_from_is_learned(mixer):
    model = model_of(mixer, mixer_options={"learn_initial": True})
    reset = torch.rand(3, 7, generator=torch.Generator().manual_seed(2)) < 0.3
    for batch in (batch_of(model, reset=reset), batch_of(model)):
        found, _, _ = learned(model, "diagonal_rtrl", batch)
        check_equal(found, by_windows(model, batch)[0])
        assert any(n.endswith(("h0", "c0")) and g.any() for n, g in found.items())


def test_steps_of_which_nothing_is_asked_are_remembered():
    for mixer in ("lru", "mingru"):
        model = model_of(mixer, pool="last")
        batch = batch_of(model)
        whole, _, _ = learned(model, "bptt", batch)
        found, _, _ = learned(model, "diagonal_rtrl", batch)
        check_equal(
            {n: g for n, g in found.items() if "mixer" in n},
            {n: g for n, g in whole.items() if "mixer" in n},
        )


def test_frozen_weights_have_no_gradient_and_others_theirs():
    for frozen in ("B", "nu_log", "C"):
        model = model_of("lru")
        model.blocks[0].mixer.get_parameter(frozen).requires_grad_(False)
        found, _, _ = learned(model, "diagonal_rtrl", batch_of(model))
        assert f"blocks.0.mixer.{frozen}" not in found
        check_equal(found, by_windows(model, batch_of(model))[0])


def test_what_a_layer_draws_in_training_is_drawn_again():
    model = model_of("qrnn", mixer_options={"zoneout": 0.5}).train()
    batch = batch_of(model)
    found, rule, _ = learned(model, "diagonal_rtrl", batch)
    check_equal(found, by_windows(model, batch)[0])
    (kind,) = rule._found[model.blocks[0].mixer].kinds.values()
    assert kind.program is None
    after = torch.rand(1)
    by_windows(model, batch)
    assert torch.rand(1).equal(after)  # no number is drawn twice of the stream itself


def test_weights_that_moved_or_were_replaced_are_those_of_the_step():
    model = model_of("lru")
    layer, batch = model.blocks[0].mixer, batch_of(model)
    rule = learn.build("diagonal_rtrl")
    for change in ("none", "moved", "replaced", "hooked"):
        with torch.no_grad():
            if change == "moved":
                layer.nu_log += 0.1
            if change == "replaced":
                layer.B = nn.Parameter(layer.B * 1.1)
        seen = []
        if change == "hooked":
            layer.register_forward_hook(lambda *_, seen=seen: seen.append(1))
        model.zero_grad(set_to_none=True)
        rule.step(model, batch, None, Loop(mse_loss))
        found = {n: p.grad for n, p in model.named_parameters()}
        check_equal(found, by_windows(model, batch)[0])
        assert bool(seen) == (change == "hooked")


def test_precision_of_autocast_is_that_of_the_answer():
    model = model_of("mingru", dtype=F32)
    batch = batch_of(model)
    with torch.autocast("cpu", torch.bfloat16):
        found, rule, _ = learned(model, "diagonal_rtrl", batch)
        wanted, _, _ = by_windows(model, batch)
    assert not rule._found[model.blocks[0].mixer].kinds  # nothing was recorded
    check_equal(found, wanted, 2e-2)
    assert all(t.dtype is F32 for t in rule.state_dict().values())


class Through(nn.Module):
    """Answers with what a layer answers, and with its state after the step."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, state=None):
        y, state = self.layer(x, state)
        return y + state.real.unsqueeze(1), state


def test_a_state_after_the_step_has_its_credit_too():
    torch.manual_seed(0)
    model = Through(build("lru", 6).double())
    x, target = torch.randn(2, 5, 6).double(), torch.randn(2, 5, 6).double()
    found, _, _ = learned(model, "diagonal_rtrl", Batch(x, target, None, None))
    model.zero_grad()
    state, answers = None, []
    for t in range(5):
        y, state = model(x[:, t : t + 1], state)
        answers.append(y)
    mse_loss(torch.cat(answers, 1), target).backward()
    check_equal(found, {n: p.grad for n, p in model.named_parameters()})


def test_steps_are_learned_from_without_native_kernels(monkeypatch):
    model = model_of("lru")
    wanted, _, _ = learned(model, "diagonal_rtrl", batch_of(model))
    operations.cache_clear()
    monkeypatch.setattr(_native, "load", lambda: (None, "there are none"))
    found, rule, _ = learned(model, "diagonal_rtrl", batch_of(model))
    assert not rule._found[model.blocks[0].mixer].kinds  # nothing was recorded
    check_equal(found, wanted)


def test_a_layer_is_as_it_was_after_an_error():
    model = model_of("lru")
    rule, layer = learn.build("diagonal_rtrl"), model.blocks[0].mixer

    def fail(*_):
        raise RuntimeError("stop")

    handle = model.head.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="stop"):
        rule.step(model, batch_of(model), None, Loop(mse_loss))
    handle.remove()
    assert "forward" not in vars(layer)
    rule = copy.deepcopy(rule)  # as a checkpoint does, of all but what was broken off
    assert not rule._calls
    found, _, _ = learned(model, "diagonal_rtrl", batch_of(model))
    model.zero_grad(set_to_none=True)
    rule.step(model, batch_of(model), None, Loop(mse_loss))
    check_equal({n: p.grad for n, p in model.named_parameters()}, found)


class Lossy(MinGRU):
    """Has training keep its answers small."""

    def _read(self, x, state, reset):
        y, after = super()._read(x, state, reset)
        if self.asks_for_loss():
            self.add_loss(y.square().mean())
        return y, after


def test_what_a_layer_adds_to_the_loss_is_not_lost():
    torch.manual_seed(0)
    model = Through(Lossy(6).double())
    batch = Batch(*torch.randn(2, 2, 5, 6).double(), None, None)
    found = []
    for name, options in (("diagonal_rtrl", {}), ("chunked_rtrl", {"window": 1})):
        with added_losses() as added:
            grads, _, _ = learned(model, name, batch, options)
            found.append((grads, added.take()))
    assert found[0][1] is not None
    torch.testing.assert_close(found[0][1], found[1][1])
    check_equal(found[0][0], found[1][0])


def test_a_forward_pass_of_somebody_else_is_read():
    torch.manual_seed(0)
    layer = build("mingru", 6).double()
    model = Through(layer)

    def doubled(self, x, state=None, **more):
        return type(self).forward(self, 2 * x, state, **more)

    layer.forward = MethodType(doubled, layer)
    batch = Batch(*torch.randn(2, 2, 5, 6).double(), None, None)
    found, _, step = learned(model, "diagonal_rtrl", batch)
    wanted, _, other = by_windows(model, batch)
    check_equal(found | {"y": step.y}, wanted | {"y": other.y})


def test_bad_input_is_said_as_without_a_learner():
    model, rule = Through(build("lru", 6)), learn.build("diagonal_rtrl")
    batch = Batch(torch.randn(2, 5, 7), torch.randn(2, 5, 6), None, None)
    with pytest.raises(
        ShapeError, match=r"^LRU.forward: x must have shape \(batch, time, d_model=6\)"
    ):
        rule.step(model, batch, None, Loop(mse_loss))
