"""The laws every mixer keeps or declares, with a reason, that it cannot."""

import copy
import itertools
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from linrnn.errors import ArgumentError
from linrnn.mixers import Mixer, added_losses
from linrnn.nn.parameters import working_dtype
from linrnn.state import leaves, map_state, n_floats, ordered
from linrnn.testing._autocast_law import check_autocast_gradients, moved_by_rounding
from linrnn.testing._checkpointed import same_when_checkpointed
from linrnn.testing._compiler_errors import compiler_error
from linrnn.testing._copy_laws import round_trip
from linrnn.testing._derivatives import check_derivatives, check_forward_mode
from linrnn.testing._graph_laws import dynamic_shapes, every_option, meta_device, untraceable
from linrnn.testing._input_laws import bad_input, check_make
from linrnn.testing._mixer_runs import (
    BATCH,
    TIME,
    WIDTH,
    MakeMixer,
    build,
    busy_state,
    compare,
    detached,
    in_each_form,
    in_laws,
    in_pieces,
    results,
    signal,
    stepwise,
    to_double,
)
from linrnn.testing._mixer_runs import FORM_ROUNDINGS as FORM_ROUNDINGS
from linrnn.testing._range_laws import ranges
from linrnn.testing._signal_laws import signals
from linrnn.testing._small_laws import small
from linrnn.testing._state_laws import zeros_begin_anew
from linrnn.testing._time_laws import GRADCHECK, times
from linrnn.testing._tolerance import (
    LOOP_MULTIPLE,
    BrokenPropertyError,
    check_close,
    check_true,
    difference,
    epsilon,
)
from linrnn.typing import State

LONG = 65_536
TRAINED = 8  # steps of the sequences that `trains` reads
SEEN = 1e-11  # a thousandth of the epsilon in Adam: what has a smaller gradient hardly moves
LEARNED = 0.8  # of the loss, after a hundred steps
HUGE = (1e4, 1e10, 1e30, float("inf"), float("-inf"), float("nan"))


def forms_agree(make: MakeMixer) -> None:
    """One call, a loop of steps, any split carrying the state, every form: the same numbers."""
    mixer = build(make)
    x, state = signal(BATCH, TIME, WIDTH), busy_state(mixer)
    expected = results(mixer, mixer, x, state)
    compare("loop of steps", results(stepwise(mixer), mixer, x, state), expected, FORM_ROUNDINGS)
    for lengths in ((1, 18), (18, 1), (0, 19), (7, 0, 5, 7), (19, 0)):
        got = results(in_pieces(mixer, *lengths), mixer, x, state)
        compare(f"split into {lengths}", got, expected, FORM_ROUNDINGS)
    for form in mixer.forms[1:]:
        variant = build(make, form=form)
        variant.load_state_dict(mixer.state_dict())
        compare(f"form {form!r}", results(variant, variant, x, state), expected, FORM_ROUNDINGS)
        got = results(in_pieces(variant, 7, 12), variant, x, state)
        compare(f"form {form!r} split", got, expected, FORM_ROUNDINGS)
    fresh = mixer(x, mixer.init_state(BATCH))[0]
    check_close("state=None against init_state", mixer(x)[0], fresh)


def causal(make: MakeMixer) -> None:
    """Changing the input at time t changes nothing before t, not a bit by a huge value or NaN."""
    mixer = build(make)
    x, state = signal(BATCH, TIME, WIDTH).requires_grad_(), busy_state(mixer)
    y, _ = mixer(x, state)
    for t in (1, TIME // 2, TIME - 1):
        (grad,) = torch.autograd.grad(y[:, :t].sum(), x, retain_graph=True)
        check_true(f"the output before step {t} depends on it", not grad[:, t:].any())
        changed = x.detach().clone()
        changed[:, t:] += 1
        check_close(f"output before step {t}", mixer(changed, state)[0][:, :t], y[:, :t])
    for dtype in (torch.float32, torch.float64):
        _untouched_by_huge_values(build(make, dtype=dtype))


@torch.no_grad()
def _untouched_by_huge_values(mixer: Mixer) -> None:
    """Neither earlier steps of a row nor other rows, by what one step of the row holds."""
    time = 5 * TIME  # several blocks or chunks, where there are any
    x = signal(BATCH, time, WIDTH, dtype=working_dtype(mixer))
    try:
        y, _ = mixer(x)
    except ArgumentError:  # a form with another limit
        time = TIME
        x = x[:, :time]
        y, _ = mixer(x)
    places = (1, time // 2, time - 1)
    # float64 takes the ways of float32, so there each value has one place
    turns = zip(HUGE, itertools.cycle(places), strict=False)
    everywhere = itertools.product(HUGE, places)
    for value, t in turns if x.dtype == torch.float64 else everywhere:
        changed = x.clone()
        changed[1, t] = value
        try:
            got, _ = mixer(changed)
        except ArgumentError:  # refused, so there is no wrong number
            continue
        what = f"{value} at step {t}, {x.dtype}"
        check_true(f"{what} reached the output before", torch.equal(got[1, :t], y[1, :t]))
        check_true(f"{what} reached another row", torch.equal(got[::2], y[::2]))


def reset_and_packing(make: MakeMixer) -> None:
    """Sequences packed into one row, marked by resets, give what each gives alone."""
    mixer = build(make)
    x, state = signal(1, TIME, WIDTH), busy_state(mixer, 1)
    reset = torch.zeros(1, TIME, dtype=torch.bool)
    reset[:, [4, 5, 12]] = True
    y, last = mixer(x, state, reset=reset)
    alone = [mixer(x[:, :4], state), *(mixer(p) for p in x[:, 4:].split([1, 7, 7], 1))]
    check_close("packed", y, torch.cat([p[0] for p in alone], 1), roundings=FORM_ROUNDINGS)
    if "constant_memory" in mixer.declared:  # what is out of sight may still take room
        continuation = signal(1, TIME, WIDTH, seed=3)
        got, expected = (mixer(continuation, s)[0] for s in (last, alone[-1][1]))
        check_close("what follows the last one", got, expected, roundings=FORM_ROUNDINGS)
    else:
        for got, expected in zip(leaves(last), leaves(alone[-1][1]), strict=True):
            check_close("state of the last one", got, expected, roundings=FORM_ROUNDINGS)
    reset[:, 0] = True
    y, _ = mixer(x, state, reset=reset)
    first = mixer(x[:, :4])[0]
    check_close("reset at the first step", y[:, :4], first, roundings=FORM_ROUNDINGS)


def batch_independence(make: MakeMixer) -> None:
    """Row i of a batch is what it is alone, whatever the other rows hold."""
    mixer = build(make)
    x, state = signal(BATCH, TIME, WIDTH), busy_state(mixer)
    y, last = mixer(x, state)
    for i in range(BATCH):
        row, row_last = mixer(x[i : i + 1], map_state(lambda h, i=i: h[i : i + 1], state))  # type: ignore[misc]
        check_close(f"row {i}", y[i : i + 1], row, roundings=FORM_ROUNDINGS)
        for got, expected in zip(leaves(last), leaves(row_last), strict=True):
            check_close(f"state {i}", got[i : i + 1], expected, roundings=FORM_ROUNDINGS)
    poisoned = x.clone()
    poisoned[0] = float("nan")
    y, _ = mixer(poisoned, state)
    check_true("NaN in row 0 reached another row", bool(y[1:].isfinite().all()))


def gradients(make: MakeMixer) -> None:
    """`gradcheck` in float64, for the input and every part of the state.

    In training, every form has the same gradients to the bit under `torch.utils.checkpoint`.
    """
    mixer = build(make)
    x, state = signal(2, 4, WIDTH).requires_grad_(), busy_state(mixer, 2)
    structure = ordered(state)  # as `leaves` takes it apart

    def run(x: Tensor, *state_leaves: Tensor) -> tuple[Tensor, ...]:
        remaining = iter(state_leaves)
        y, last = mixer(x, map_state(lambda _: next(remaining), structure))
        return y, *(h for h in leaves(last) if h.requires_grad)

    try:
        torch.autograd.gradcheck(run, (x, *leaves(state)), fast_mode=True, **GRADCHECK)
    except RuntimeError as error:
        raise BrokenPropertyError(f"gradcheck: {error}") from error
    same_when_checkpointed(make)


def higher_derivatives(make: MakeMixer) -> None:
    """First and second derivatives agree in every mode, of all forms: see `check_derivatives`.

    Input, state and parameters are functions of one another. In float32, which other kernels may
    compute, the derivatives of the output by the input exist in forward mode too.
    """
    for form, mixer in in_each_form(make, dtype=torch.float32):
        double = copy.deepcopy(mixer).double()
        x, direction = signal(2, 4, WIDTH), signal(2, 4, WIDTH, seed=2)
        check_forward_mode(f"form {form!r}", outputs_of(mixer), outputs_of(double), x, direction)
    for form, mixer in in_each_form(make):
        state = map_state(Tensor.detach, ordered(busy_state(mixer, 2)))
        parts = {f"state{i}": h for i, h in enumerate(leaves(state))}
        parameters = {n: p.detach() for n, p in mixer.named_parameters()}

        def run(mixer: Mixer = mixer, state: State = state, **moved: Tensor) -> object:
            x, remaining = moved.pop("x"), iter(moved.values())
            start = map_state(lambda _: next(remaining), state)
            weights = dict(zip(dict(mixer.named_parameters()), remaining, strict=True))
            return torch.func.functional_call(mixer, weights, (x, start))

        arguments = {"x": signal(2, 4, WIDTH), **parts, **parameters}
        check_derivatives(f"form {form!r}", run, arguments, singly=False)


def outputs_of(mixer: Mixer) -> Callable[[Tensor], Tensor]:
    """A layer as a function of its input, without the state."""

    def outputs(x: Tensor) -> Tensor:
        y: Tensor = mixer(x)[0]
        return y

    return outputs


def trains(make: MakeMixer) -> None:
    """Two layers without norms or skips: every parameter has a gradient, and training works.

    But for parameters that ask for none. What layers add to the loss, `Mixer.add_loss`, has
    gradients as in training.
    """
    torch.manual_seed(0)
    layers = [make(d_model=WIDTH, dtype=torch.float64, **in_laws(make)) for _ in range(2)]
    parameters = [p for layer in layers for p in layer.parameters() if p.requires_grad]
    check_true("no parameter asks for a gradient", bool(parameters))
    x = signal(BATCH, TRAINED, WIDTH)
    # this step's and the last step's input: a recurrence is needed, a short one is enough
    target = x + torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)

    def loss() -> Tensor:
        with added_losses() as added:
            y: Tensor = layers[1](layers[0](x)[0])[0]
        added_loss, error = added.take(), (y - target).square().mean()
        return error if added_loss is None else error + (added_loss - added_loss.detach())

    first = loss()
    first.backward()
    for i, layer in enumerate(layers):
        for name, p in ((n, p) for n, p in layer.named_parameters() if p.requires_grad):
            size = 0.0 if p.grad is None else float(p.grad.abs().max())
            check_true(f"the gradient of {name} in layer {i} is {size:.3g}", size > SEEN)
    optimiser, fraction = torch.optim.Adam(parameters, lr=0.01), 1.0
    for _ in range(100):
        optimiser.step()
        optimiser.zero_grad()
        last = loss()
        last.backward()
        fraction = float(last.detach() / first.detach())
        if fraction < LEARNED:
            return
    check_true(f"100 steps of Adam leave {fraction:.3g} of the loss", fraction < LEARNED)


def finite_when_long(make: MakeMixer, steps: int | None = None) -> None:
    """Forward and backward over 65,536 steps of float32, and 8,192 of bfloat16, are finite.

    One row of a batch is white, the other constant.

    Where that takes minutes, by `Mixer.cost`, 2,048 and 256, in segments of 64 where a layer has
    such: with those of the other laws it takes a minute. Both dtypes read ``steps`` if asked.
    """
    whole = steps is not None
    first = build(make)
    if steps is None:
        steps = LONG if first.cost == "parallel" else LONG // 32
        if first.cost == "sequential" and "constant_memory" in first.declared:
            steps //= 4  # each of them looks at all before it
    longer = {"segment": 64} if "segment" in in_laws(make) else {}
    for dtype in (torch.float32, torch.bfloat16):
        if dtype == torch.bfloat16 and not whole:
            steps //= 8  # its states are of float32: what differs is seen early
        mixer = build(make, dtype=dtype, **longer)
        constant = torch.ones(1, steps, WIDTH, dtype=dtype)
        long = torch.cat([signal(1, steps, WIDTH, dtype=dtype), constant])
        for what, value in results(mixer, mixer, long, mixer.init_state(2)).items():
            check_true(
                f"white and constant {dtype} input of {steps} steps: {what} is not finite",
                bool(value.isfinite().all()),
            )


def constant_memory(make: MakeMixer) -> None:
    """The state's size does not depend on how much was read."""
    mixer = build(make)
    start = mixer.init_state(BATCH)
    for time in (0, 1, 50, 500):
        _, state = mixer(signal(BATCH, time, WIDTH))
        shapes = [tuple(h.shape) for h in leaves(state)]
        expected = [tuple(h.shape) for h in leaves(start)]
        check_true(f"after {time} steps the state is {shapes}, not {expected}", shapes == expected)
        check_true(f"after {time} steps it holds more", n_floats(state) == n_floats(start))
    for h in leaves(start):
        check_true(f"state axis 0 must be the batch, got {tuple(h.shape)}", len(h) == BATCH)


def low_precision(make: MakeMixer) -> None:
    """bfloat16 and autocast are finite and within bfloat16's own error of float32.

    That is 8 roundings, and what moving weights and inputs by a rounding moves outputs by. So are
    gradients inside of autocast. Where a rounding may turn a choice, as a layer declares, numbers
    are not compared: whether one turns depends on the processor. A segment takes 16 of the 200
    steps: in those of the other laws, of 2 to 4, that takes up to ten times as long.
    """
    longer = {"segment": 16} if "segment" in in_laws(make) else {}
    half = build(make, dtype=torch.bfloat16, **longer)
    mixer = build(make, dtype=torch.float32, **longer)
    mixer.load_state_dict({n: p.float() for n, p in half.state_dict().items()})
    x = signal(BATCH, 200, WIDTH, dtype=torch.bfloat16)
    truth = results(mixer, mixer, x.float(), mixer.init_state(BATCH))
    got = results(half, half, x, half.init_state(BATCH))
    for name, value in got.items():
        check_true(f"bfloat16: {name} is not finite", bool(value.isfinite().all()))
    check_true(f"bfloat16: y is {got['y'].dtype}", got["y"].dtype == torch.bfloat16)
    for h in leaves(half(x)[1]):
        precise = not (h.is_floating_point() and h.dtype.itemsize < 4)
        check_true(f"bfloat16: the state must be at least float32, got {h.dtype}", precise)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, _ = mixer(x.float())
    check_true("autocast: y is not finite", bool(y.isfinite().all()))
    if "low_precision" in mixer.declared:
        return
    moved = moved_by_rounding(mixer, x.float())
    check_close("bfloat16: y", got["y"], truth["y"], loop_error=moved / LOOP_MULTIPLE, roundings=8)
    allowed = moved + 8 * epsilon(torch.bfloat16) * float(truth["y"].detach().abs().max())
    error = difference(y, truth["y"])
    check_true(f"autocast: y differs by {error:.3g}, allowed {allowed:.3g}", error <= allowed)
    check_autocast_gradients(mixer, x.float())


def compiles(make: MakeMixer, compiler: str = "aot_eager") -> None:
    """``torch.compile(fullgraph=True)`` and its gradients agree with eager.

    `dynamic_shapes` exports and compiles every form, and a step.
    """
    mixer = build(make, dtype=torch.float32)
    x, state = signal(BATCH, TIME, WIDTH, dtype=torch.float32), busy_state(mixer)
    torch._dynamo.reset()
    try:
        _compare_compiled(mixer, x, state, compiler)
    except BrokenPropertyError:
        raise
    except Exception as error:
        raise BrokenPropertyError(compiler_error(error)) from error


def _compare_compiled(mixer: Mixer, x: Tensor, state: State, compiler: str) -> None:
    eager = results(mixer, mixer, x, state)
    compiled = torch.compile(mixer, fullgraph=True, backend=compiler)

    def in_double() -> dict[str, Tensor]:
        double = copy.deepcopy(mixer).double()
        return results(double, double, to_double(x), map_state(to_double, state))

    compare("compiled", results(compiled, mixer, x, state), eager, 64, in_double)


def edges(make: MakeMixer) -> None:
    """T = 1, T = 0, one row, huge inputs, any strides; nothing changed in place."""
    mixer = build(make)
    state = busy_state(mixer)
    y, same = mixer(signal(BATCH, 0, WIDTH), state)
    check_true(f"T = 0: y has shape {tuple(y.shape)}", y.shape == (BATCH, 0, WIDTH))
    for expected, actual in zip(leaves(state), leaves(same), strict=True):
        check_close("T = 0: state", actual, expected, roundings=0)
    x = signal(BATCH, TIME, WIDTH)
    original, original_state = x.clone(), detached(state)
    y, _ = mixer(x, state)
    check_true("the input was modified", torch.equal(x, original))
    for expected, actual in zip(leaves(original_state), leaves(state), strict=True):
        check_true("the state passed in was modified", torch.equal(expected, actual))
    check_true("two equal calls differ", torch.equal(y, mixer(x, state)[0]))
    if mixer.random_training:
        _noise_follows_the_seed(build(make).train(), x)
    first_step, _ = mixer(x[:1, :1], map_state(lambda h: h[:1], state))
    check_close("one row of one step", first_step, y[:1, :1], roundings=FORM_ROUNDINGS)
    strided = x.transpose(0, 1).contiguous().transpose(0, 1)
    check_close("transposed", mixer(strided, state)[0], y, roundings=FORM_ROUNDINGS)
    single = build(make, dtype=torch.float32)
    huge = signal(BATCH, TIME, WIDTH, dtype=torch.float32) * 1e4
    got = results(single, single, huge, single.init_state(BATCH))
    for name, value in got.items():
        check_true(f"inputs of 1e4: {name} is not finite", bool(value.isfinite().all()))


def _noise_follows_the_seed(mixer: Mixer, x: Tensor) -> None:
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outputs.append(mixer(x)[0])
    check_true("one seed gives two results in training", torch.equal(outputs[0], outputs[1]))
    check_true("training draws nothing from the seed", not torch.equal(outputs[0], outputs[2]))


MIXER_PROPERTIES: dict[str, Callable[[MakeMixer], None]] = {
    law.__name__: law
    for law in (
        forms_agree,
        causal,
        reset_and_packing,
        zeros_begin_anew,
        batch_independence,
        gradients,
        higher_derivatives,
        trains,
        finite_when_long,
        constant_memory,
        round_trip,
        low_precision,
        compiles,
        dynamic_shapes,
        untraceable,
        meta_device,
        every_option,
        edges,
        small,
        bad_input,
        times,
        ranges,
        signals,
    )
}


#: Laws about numbers alone, quick enough for every way to set a mixer up.
NUMERIC_LAWS = (
    *("forms_agree", "causal", "reset_and_packing", "zeros_begin_anew", "batch_independence"),
    "gradients",
    *("higher_derivatives", "constant_memory", "low_precision", "edges"),
)

#: Laws that read a declared exception themselves, and hold in what remains.
READ_EXCEPTIONS = ("low_precision",)
#: Laws checked in every form of a mixer; of the others, `forms_agree` is enough.
LAWS_OF_FORMS = ("causal",)


def check_property(name: str, make: MakeMixer) -> None:
    """Check one law, or, where the mixer declares an exception, that it really is one.

    Raises:
        BrokenPropertyError: the mixer lacks it, or has it although the class declares to lack it.
    """
    check_make("check_property", make)
    mixer = build(make)
    _check_law(name, make, mixer)
    for form in mixer.forms[1:] if name in LAWS_OF_FORMS else ():
        make_form = partial(make, form=form)
        _check_law(name, make_form, build(make_form))


def _check_law(name: str, make: MakeMixer, mixer: Mixer) -> None:
    form = mixer.form
    declared = {} if name in READ_EXCEPTIONS else mixer.declared
    reason = declared.get(f"{name}:{form}", declared.get(name))
    try:
        MIXER_PROPERTIES[name](make)
    except BrokenPropertyError as error:
        if reason is None:
            raise BrokenPropertyError(f"{name}: {error}") from error
    else:
        if reason is not None:
            raise BrokenPropertyError(f"{name}: declared impossible ({reason}), yet it holds")


def check_mixer(make: MakeMixer) -> None:
    """Check every law of the mixer contract.

    Args:
        make: a `Mixer` class, or a function called as ``make(d_model=..., dtype=...)``, and with
            ``form=...`` where the mixer has several forms.

    Raises:
        BrokenPropertyError: naming the law, the case and the error found.

    Example:
        >>> from linrnn.mixers import LRU
        >>> check_mixer(LRU)  # doctest: +SKIP
    """
    for name in MIXER_PROPERTIES:
        check_property(name, make)
