"""Recorded steps of models against the operators they were recorded from."""

import copy
import gc
import inspect
import itertools
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import mixer_pairs
from linrnn import SequenceModel
from linrnn.compute import native
from linrnn.compute.replay import Replays
from linrnn.engine.functions import FUNCTIONS
from linrnn.engine.replay import program as _recorded_program
from linrnn.engine.replay import step as _recorded_step
from linrnn.engine.replay.operands import RefusedError
from linrnn.engine.replay.recorder import assumed
from linrnn.engine.replay.tape import Tape
from linrnn.mixers import Mixer, load, names
from linrnn.mixers._families.segments import SegmentMixer
from linrnn.ops import explain, linear_scan
from linrnn.state import leaves, map_state
from linrnn.state_spec import real
from linrnn.testing._mixer_runs import WIDTH
from linrnn.testing._options import option_sets

F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16
#: ReBased divides by sums that may be small: 1.4e-5 was seen in float32.
TOLERANCE = {F64: 1e-12, F32: 2e-5}
#: Mixers without a recorded step: those whose state grows with what was read.
UNRECORDED = {name for name in names() if "constant_memory" in load(name).declared}
BLOCKS = {
    "glu": {"norm": "batch", "pool": "mean"},
    "mlp": {"norm": "layer", "pool": "last", "final_norm": True, "conv_width": 3},
    "swiglu": {"norm": "rms", "pool": "last", "d_ffn": 7},
    "channel_mix": {"norm": "rms", "pool": "none"},
    "bare": {"norm": "none", "pool": "none", "prenorm": False},
    "bare without a skip": {"block": "bare", "norm": "rms", "pool": "none", "skip": False},
    "xlstm": {"norm": "layer", "pool": "none", "encoder_scale": 2.0, "logit_soft_cap": 3.0},
}
#: By name, and how many rows are read.
DTYPES = {"float64": (F64, 9), "float32": (F32, 3)}

pytestmark = [
    # layers pass the checker in the contract, at every option; here they are only run once more
    pytest.mark.unchecked,
    pytest.mark.skipif(
        native.load()[0] is None or not _recorded_program.operations(),
        reason="the native kernels are not installed, or not these",
    ),
]


@pytest.fixture(autouse=True)
def _recorded_though_slower(monkeypatch):
    monkeypatch.setattr(_recorded_program, "_NUMBERS", float("inf"))


def built(mixer, dtype=F32, width=12, **options):
    """A model none of whose parts is zero, as some are at first."""
    torch.manual_seed(0)
    model = SequenceModel(3, 5, mixer=mixer, d_model=width, **{"n_layers": 2, **options})
    for part in model.modules():
        if isinstance(part, nn.Linear) and not part.weight.any():
            nn.init.normal_(part.weight, std=part.in_features**-0.5)
        if isinstance(part, nn.BatchNorm1d):
            nn.init.normal_(part.running_mean)
            nn.init.uniform_(part.running_var, 0.5, 2)
    return model.to(dtype).eval()


def small(mixer):
    """Options of a layer; segments have steps that neither begin nor end them."""
    cls = load(mixer)
    return {**cls.in_laws, **({"segment": 4} if issubclass(cls, SegmentMixer) else {})}


def by_operators(model, x, state):
    """With gradients, no step is recorded."""
    y, state = model.step(x, state)
    return y.detach(), map_state(torch.Tensor.detach, state)


def program(model):
    """The program that runs the steps of a model, None if operators do."""
    found = [kind.program for kind in _recorded_step._kinds.get(model, {}).values()]
    return next((p for p in found if p is not None), None)


def same(got, want, tolerance):
    for a, b in zip([got[0], *leaves(got[1])], [want[0], *leaves(want[1])], strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        size = b.abs().max().item() if b.numel() else 0.0  # sums of both signs cancel
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * max(1.0, size))


def is_as_exact(model, x, state, got, want):
    """As near to float64 as the operators of the model's own dtype are, by a factor of 4."""
    wide = copy.deepcopy(model).double()
    exact = by_operators(wide, x.double(), map_state(as_double, state))
    for a, b, c in zip(*([y[0], *leaves(y[1])] for y in (got, want, exact)), strict=True):
        error, allowed = ((part.double() - c.double()).abs().max() for part in (a, b))
        assert error <= 4 * allowed, (error, allowed)


def as_double(x):
    return x.double() if x.is_floating_point() else x


def settled(model, x, state):
    """After a step."""
    with torch.no_grad():
        model.step(x, state)
    return program(model)


def in_block(block):
    """The options of a model."""
    return {"block": block} | BLOCKS[block]


@pytest.mark.parametrize(
    ("mixer", "block", "word"),
    mixer_pairs.cases(names(), list(itertools.product(BLOCKS, DTYPES)), least=1),
)
def test_a_recorded_step_is_that_of_its_operators(mixer, block, word):
    dtype, batch = DTYPES[word]
    model = built(mixer, dtype, mixer_options=small(mixer), **in_block(block))
    state = model.init_state(batch)
    for t in range(12):
        x = torch.randn(batch, 3, dtype=dtype)
        want = by_operators(model, x, state)
        with torch.no_grad():
            got = model.step(x, state)
        try:
            same(got, want, TOLERANCE[dtype])
        except AssertionError:  # as of ReBased, which divides by almost nothing
            if dtype is F64:
                raise
            is_as_exact(model, x, state, got, want)
        state = got[1]
        if t == 5:  # the first row begins anew
            fresh = model.init_state(batch)
            state = map_state(lambda h: h.clone(), state)
            for h, start in zip(leaves(state), leaves(fresh), strict=True):
                if h.shape == start.shape:
                    h[0] = start[0]
    assert (program(model) is None) == (mixer in UNRECORDED)


#: Options that meet in threes only.
TOGETHER = {"attention": [{"n_heads": 4, "n_kv_heads": 2, "window": 3}]}


@pytest.mark.parametrize(
    "mixer",
    [
        pytest.param(x, marks=[] if i % 4 == 0 else [pytest.mark.slow])
        for i, x in enumerate(names())
    ],
)
def test_a_recorded_step_is_that_of_its_operators_with_any_options(mixer):
    """Two rows, from the state after two steps."""
    make = load(mixer)
    for options in [*option_sets(make), *TOGETHER.get(mixer, [])]:
        torch.manual_seed(0)
        given = {**make.in_laws, **options}
        model = SequenceModel(3, 2, mixer=mixer, d_model=WIDTH, n_layers=1, mixer_options=given)
        state = model.eval().init_state(2)
        for _ in range(4):
            x = torch.randn(2, 3)
            want = by_operators(model, x, state)
            with torch.no_grad():
                got = model.step(x, state)
            same(got, want, TOLERANCE[F32])
            state = got[1]


FEW = ("gru", "s4d", "mamba")


@pytest.mark.parametrize(
    "mixer",
    [
        pytest.param(x, marks=[] if x in FEW else [pytest.mark.slow])
        for x in names()
        if x not in UNRECORDED
    ],
)
def test_weights_of_bfloat16_are_no_less_exact_than_operators(mixer):
    model = built(mixer, BF16, width=32)
    exact = copy.deepcopy(model).double()
    state, errors = model.init_state(1), []
    wide = map_state(lambda h: h.double() if h.is_floating_point() else h, state)
    wide = map_state(lambda h: h.to(torch.complex128) if h.is_complex() else h, wide)
    plain = state
    for _ in range(12):
        x = torch.randn(1, 3, dtype=BF16)
        with torch.no_grad():
            y, state = model.step(x, state)
        z, plain = by_operators(model, x, plain)
        want, wide = by_operators(exact, x.double(), wide)
        errors.append([(a.double() - want).abs().mean().item() for a in (y, z)])
    assert program(model) is not None
    ours, theirs = torch.tensor(errors).mean(0).tolist()
    assert ours <= 1.2 * theirs + 1e-3


def changed(name):
    """Changes of a model; each changes the output of a step."""

    def in_place(model):
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1.1)

    def behind_its_back(model):
        for p in model.parameters():
            p.data.mul_(1.1)

    def replaced(model):
        model.head.weight = nn.Parameter(torch.randn_like(model.head.weight))

    def other_module(model):
        model.blocks[0].norm = nn.LayerNorm(12)

    def loaded(model):
        model.load_state_dict({k: 1.1 * x for k, x in model.state_dict().items()})

    def eps(model):
        model.blocks[1].norm.eps = 0.7

    def hook(model):
        model.blocks[0].register_forward_hook(lambda *a: None)
        model.blocks[0].mixer.register_forward_pre_hook(lambda *a: None)
        model.blocks[1].norm.register_forward_hook(lambda part, args, y: 2 * y)

    def method(model):
        step = model.blocks[0].mixer.step
        model.blocks[0].mixer.step = lambda x, state: step(2 * x, state)

    def scaled(model):
        nn.utils.parametrize.register_parametrization(model.head, "weight", nn.Softplus())

    def appended(model):
        model.blocks[0], model.blocks[1] = model.blocks[1], model.blocks[0]

    def buffers(model):
        model.blocks[0].norm.running_mean.add_(1)

    return locals()[name]


CHANGES = (
    *("in_place", "behind_its_back", "replaced", "other_module", "loaded", "eps", "hook"),
    *("method", "scaled", "appended", "buffers"),
)


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize(
    "mixer", ["lru", *(pytest.param(x, marks=pytest.mark.slow) for x in ("s4d", "exp_rnn"))]
)
def test_a_model_that_was_changed_gives_what_it_is_now(mixer, name):
    model = built(mixer)
    x, state = torch.randn(1, 3), model.init_state(1)
    _, state = by_operators(model, x, state)
    assert settled(model, x, state) is not None
    before, _ = by_operators(model, x, state)
    changed(name)(model)
    want = by_operators(model, x, state)
    assert not torch.allclose(before, want[0], atol=1e-4)
    with torch.no_grad():
        for _ in range(4):
            same(model.step(x, state), want, 1e-5)


@pytest.mark.parametrize("mixer", ["exp_rnn", "unitary_rnn"])
def test_what_pytorch_computes_of_weights_follows_them(mixer):
    model = built(mixer)
    x, state = torch.randn(1, 3), model.init_state(1)
    _, state = by_operators(model, x, state)
    recorded = settled(model, x, state)
    assert recorded is not None
    before, _ = by_operators(model, x, state)
    changed("behind_its_back")(model)
    want = by_operators(model, x, state)
    assert not torch.allclose(before, want[0], atol=1e-4)
    with torch.no_grad():
        for _ in range(3):
            same(model.step(x, state), want, 1e-5)
    assert program(model) is recorded


def test_pytorch_computes_nothing_of_weights_too_large_to_be_watched():
    model = built("exp_rnn", width=364)
    step = explain(model.step, torch.randn(1, 3), model.init_state(1))
    assert "weight of too many numbers" in str(step)


def test_a_model_of_another_dtype_gives_what_it_is_now():
    model = built("lru")
    for dtype in (F32, F64, BF16, F32, BF16, F64):
        model.to(dtype)
        x, state = torch.randn(1, 3, dtype=dtype), model.init_state(1)
        for _ in range(4):
            want = by_operators(model, x, state)
            with torch.no_grad():
                same(model.step(x, state), want, TOLERANCE.get(dtype, 5e-2))


def test_dropout_is_drawn_in_training():
    model = built("lru", dropout=0.5, norm="layer")
    x, state = torch.randn(1, 3), model.init_state(1)
    assert settled(model, x, state) is not None
    model.train()
    with torch.no_grad():
        ys = torch.stack([model.step(x, state)[0] for _ in range(9)])
    assert ys.std(0).min() > 0
    assert "draws random numbers" in explain(model.step, x, state)
    model.eval()
    with torch.no_grad():
        ys = torch.stack([model.step(x, state)[0] for _ in range(9)])
    assert ys.std(0).max() == 0


def test_a_step_changes_and_shares_no_memory_of_its_arguments():
    model = built("lstm")
    x, state = torch.randn(2, 3), model.init_state(2)
    assert settled(model, x, state) is not None
    with torch.no_grad():
        _, state = model.step(x, state)
        kept = map_state(torch.clone, state)
        y, after = model.step(x, state)
        again = model.step(x, state)
    assert all(map(torch.equal, leaves(kept), leaves(state)))
    found = [y, *leaves(after), *leaves(state), *leaves(again[1])]
    assert len({h.untyped_storage().data_ptr() for h in found}) == len(found)
    for h in leaves(after):
        h.fill_(9)
    same(again, by_operators(model, x, state), 1e-5)


def test_states_of_other_strides_are_read():
    model = built("lru")
    x, state = torch.randn(2, 3), model.init_state(2)
    with torch.no_grad():
        assert settled(model, x, state) is not None
        _, state = model.step(x, state)
        turned = map_state(lambda h: h.mT.contiguous().mT if h.ndim > 1 else h, state)
        same(model.step(x.mT.contiguous().mT, turned), by_operators(model, x, state), 1e-5)


def test_many_threads_step_one_model_at_once():
    model = built("s5")
    state = model.init_state(1)
    settled(model, torch.randn(1, 3), state)
    xs = torch.randn(40, 1, 3)
    want = [by_operators(model, x, state)[0] for x in xs]

    def one(x):
        with torch.no_grad():
            return model.step(x, state)[0]

    with ThreadPoolExecutor(8) as pool:
        for y, z in zip(pool.map(one, xs), want, strict=True):
            torch.testing.assert_close(y, z, rtol=1e-5, atol=1e-5)


def odd(what):
    """A mixer that does what no recording can hold."""

    class Mine(Mixer):
        family = "diagonal"

        def __init__(self, d_model, *, device=None, dtype=None):
            super().__init__()
            self.d_model = d_model
            self.gain = nn.Parameter(torch.ones(d_model, device=device, dtype=dtype))
            self.table = {"x": torch.ones(d_model)}
            self.register_buffer("mask", torch.full((d_model,), 3, device=device))

        def state_spec(self):
            return real(d_model=self.d_model)

        def _read(self, x, state, reset):
            y, last = linear_scan(0.9 * self.gain.detach().clone(), x, state, reset=reset)
            return what(self, y), last

    return Mine


ODD = {
    "looks at numbers": lambda m, y: y * 2 if y.sum().item() > 0 else y,
    "no instructions": lambda m, y: y.cumsum(-1) + torch.linalg.vector_norm(y),
    "draws random numbers": lambda m, y: y + 0 * torch.rand_like(y),
    "no parameter or buffer": lambda m, y: y * m.table["x"],
    "other numbers of them": lambda m, y: y + y.bool(),
    "bitwise_and() of numbers": lambda m, y: y + (torch.full_like(y, 6).long() & m.mask),
}


@pytest.mark.parametrize("reason", ODD)
def test_what_cannot_be_recorded_runs_as_it_is_and_says_why(reason):
    model = built(odd(ODD[reason]))
    x, state = torch.randn(2, 3), model.init_state(2)
    for _ in range(4):
        want = by_operators(model, x, state)
        with torch.no_grad():
            same(model.step(x, state), want, 1e-6)
    said = explain(model.step, x, state)
    assert said.startswith("PyTorch's operators")
    assert reason in said


#: Operators that no mixer's step has, or not with these arguments.
FEW_HAVE = {
    "index": lambda m, y: y[..., m.mask] + m.gain[m.mask - 5] * m.gain[m.mask[None]],
    "gather": lambda m, y: (
        y.gather(2, m.mask.expand_as(y)) + y.mT.gather(1, m.mask[:, None].expand_as(y.mT) + 2).mT
    ),
    "roll": lambda m, y: y.roll(5, -1) - y.mT.roll(-2, 1).mT + y.roll(0, 2),
    "repeat": lambda m, y: (
        y.repeat(1, 2, 3)[:, : y.shape[1], : y.shape[2]] * y.mT.repeat(2, 1, 1, 1)[1].mT
        + m.gain.repeat(1, 4, 1)[:, : y.shape[1], : y.shape[2]]
    ),
    "floor_divide": lambda m, y: y * ((m.mask - 7) // 3) + (-m.mask // 2),
    "var": lambda m, y: y - y.var(-1, unbiased=False, keepdim=True) + y.mT.var(1)[:, None],
    "long": lambda m, y: y + (3 * y).long() - (1e6 * y).to(torch.int64),
    "pad": lambda m, y: nn.functional.pad(y[..., 2:-1], (2, 1, 1, 0), value=0.5)[:, 1:],
}


@pytest.mark.parametrize("name", FEW_HAVE)
def test_rules_that_few_steps_need(name):
    check_recorded(FEW_HAVE[name])


def check_recorded(what):
    model = built(odd(what))
    x, state = torch.randn(2, 3), model.init_state(2)
    for _ in range(3):
        want = by_operators(model, x, state)
        with torch.no_grad():
            got = model.step(x, state)
        same(got, want, 1e-6)
        state = got[1]
    assert program(model) is not None


#: Operators of a gradient, as PyTorch calls them: of the gradient of a result, and the argument.
SLOPES = {
    "softplus": lambda g, x: torch.ops.aten.softplus_backward(g, x, 2.0, 1.0),
    "silu": torch.ops.aten.silu_backward,
    "mish": torch.ops.aten.mish_backward,
    "hardtanh": lambda g, x: torch.ops.aten.hardtanh_backward(g, x, -0.2, 0.3),
    "log_sigmoid": lambda g, x: torch.ops.aten.log_sigmoid_backward(
        g, x, (-x.detach().abs()).exp()
    ),
    "threshold": lambda g, x: torch.ops.aten.threshold_backward(g, x, 0.1),
    "gelu": torch.ops.aten.gelu_backward,
    "gelu by tanh": lambda g, x: torch.ops.aten.gelu_backward(g, x, approximate="tanh"),
    "elu": lambda g, x: torch.ops.aten.elu_backward(g, 1.5, 1, 1, False, x),
}


@pytest.mark.parametrize("name", SLOPES)
def test_a_slope_is_recorded(name):
    check_recorded(lambda m, y: y + SLOPES[name](0.7 - y / 2, 2 * y))


def test_a_slope_with_scales_runs_as_it_is():
    model = built(odd(lambda m, y: torch.ops.aten.elu_backward(y, 1.5, 2, 1, False, y)))
    with torch.no_grad():
        model.step(torch.randn(2, 3), model.init_state(2))
    assert "with scales" in explain(model.step, torch.randn(2, 3), model.init_state(2))


#: Functions of cells that are no operators of elements, or make other than real numbers.
NOT_OF_ELEMENTS = {"linear", "matmul", "roll", "fold", "complex", "polar", "type_as", "full_like"}
NOT_OF_ELEMENTS |= {"rpow", "resolve_conj", "positive"}
TABLE = sorted(
    name
    for name in FUNCTIONS
    if (hasattr(torch, name) or hasattr(nn.functional, name)) and name not in NOT_OF_ELEMENTS
)


def of_table(name):
    """A call of a function that cells know, on as many numbers as it needs."""
    parameters = list(inspect.signature(FUNCTIONS[name]).parameters.values())[1:]
    needed = [
        x.name for x in parameters if x.default is x.empty and x.kind is x.POSITIONAL_OR_KEYWORD
    ]
    function = getattr(torch, name, None) or getattr(nn.functional, name)
    numbers = {"min": -0.2, "max": 0.3, "threshold": 0.1, "value": 0.5}

    def call(m, y):
        x = torch.tanh(y)  # between -1 and 1
        tensors = [x, 0.7 - x / 2, 0.2 + x / 3]
        if name.startswith("bitwise"):
            return y + function(*(z > 0 for z in tensors[: 1 if name.endswith("not") else 2]))
        args = [numbers.get(p, z) for p, z in zip(needed, tensors, strict=False)]
        if name in ("where", "masked_fill"):
            args[name == "masked_fill"] = x > 0
        if name in ("log", "log1p", "log2", "log10", "sqrt", "rsqrt", "pow"):
            args[0] = args[0] + 1.5
        if name in ("clamp", "clip"):
            return (
                y + function(*args, -0.2) + function(*args, None, 0.3) + function(*args, -0.1, 0.1)
            )
        return y + function(*args)

    return call


@pytest.mark.parametrize("name", TABLE)
def test_a_function_of_cells_is_recorded(name):
    model = built(odd(of_table(name)), F64)
    x, state = torch.randn(2, 3, dtype=F64), model.init_state(2)
    for _ in range(3):
        want = by_operators(model, x, state)
        with torch.no_grad():
            got = model.step(x, state)
        same(got, want, 1e-12)
        state = got[1]
    assert program(model) is not None, explain(model.step, x, state)


def of_weights(name, is_complex):
    """The call of `of_table` on weights alone, whose real part is added to what a step gives."""
    call = of_table(name)

    def what(m, y):
        weights = m.gain * torch.linspace(-1, 1, len(m.gain), dtype=m.gain.dtype)
        if is_complex:
            weights = torch.complex(weights, weights.flip(0))
        result = call(m, weights)
        return y + (result.real if result.is_complex() else result)

    return what


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("name", TABLE)
def test_a_function_of_weights_alone_is_that_of_its_operators(name, is_complex):
    """Recorded, computed by PyTorch from the weights, or refused: never other numbers."""
    model = built(odd(of_weights(name, is_complex)), F64)
    x, state = torch.randn(2, 3, dtype=F64), model.init_state(2)
    try:
        want = by_operators(model, x, state)
    except (RuntimeError, NotImplementedError):
        pytest.skip("PyTorch has no such function of complex numbers")
    for _ in range(3):
        with torch.no_grad():
            same(model.step(x, state), want, 1e-12)


@pytest.mark.parametrize("op", [torch.eq, torch.ne])
def test_complex_numbers_are_compared(op):
    def what(m, y):
        z = torch.complex(y, y * 0)
        equal = op(z, z.real[..., :1]) | op(torch.complex(y * 0, m.gain + y * 0), 1j)
        return y + equal

    check_recorded(what)


def in_place(m, y):
    """Memory that is written again and again, read in between and in parts."""
    a = y * 2
    b = a + 1
    a.mul_(3)  # b has been computed of what was there
    c = a - b
    a[..., :2].add_(c[..., -2:])  # a part
    a.sub_(b).mul_(c.tanh_()).add_(c)
    d = a.sigmoid()
    a.copy_(d * y)
    d.neg_()
    b.clamp_(-0.5, 0.5).add_(d)
    return torch.stack([a, b, c, d]).sum(0) + a.roll(3, -1)[..., 1:].sum()


def test_memory_that_is_written_again_holds_what_it_did_by_then():
    check_recorded(in_place)


def ways(m, y):
    if assumed(y > 0):
        return 2 * y
    return 2 * y if bool((y > 0).all()) else -y


def test_a_step_is_recorded_for_what_it_assumes():
    layer = odd(ways)(4)
    good, bad, state = torch.ones(1, 4), torch.tensor([[1.0, 1.0, -1.0, 1.0]]), torch.zeros(1, 4)
    with torch.no_grad():
        for x, recorded in ((bad, False), (good, True), (bad, False), (good, True)):
            found = _recorded_step.recorded_step(layer, layer._step, x, state)
            assert (found is not None) == recorded
            if found is not None:
                same(found, layer._step(x, state), 1e-6)


def test_a_step_that_never_goes_the_way_of_most_is_given_up():
    layer = odd(ways)(4)
    x, state = torch.ones(1, 4), torch.zeros(1, 4)
    with torch.no_grad():
        for _ in range(_recorded_program.TRIES):
            assert _recorded_step.recorded_step(layer, layer._step, -x, state) is None
        assert _recorded_step.recorded_step(layer, layer._step, x, state) is None
    assert "another way than most" in _recorded_step.explain_step(layer, layer._step, x, state)


SEGMENTS = [name for name in names() if issubclass(load(name), SegmentMixer)]


@pytest.mark.parametrize("mixer", SEGMENTS)
def test_steps_inside_segments_are_one_native_call(mixer):
    """A layer alone: rows at two places, one of which has read numbers that are not finite."""
    torch.manual_seed(0)
    layer = load(mixer)(WIDTH, segment=8)
    state = layer.init_state(2)
    state["position"][1] = 10
    for t in range(14):
        x = torch.randn(2, WIDTH)
        if t == 3:  # which a product with another sign, or a weight of zero, could hide
            list(state["begun"].values())[-1][0, -1].view(-1)[0] = -torch.inf
        want = by_operators(layer, x, state)
        with torch.no_grad():
            got = layer.step(x, state)
        pairs = zip([got[0], *leaves(got[1])], [want[0], *leaves(want[1])], strict=True)
        for a, b in pairs:  # of complex numbers that are not finite, parts may be
            ours, theirs = (torch.where(z.isfinite(), z, 0) for z in (a, b))
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
            assert a.isfinite().equal(b.isfinite())
        assert got[0].isnan().all(1).tolist() == [t >= 3, False]
        state = got[1]
    assert program(layer) is not None
    inside = map_state(torch.clone, layer.init_state(2)) | {"position": torch.tensor([1, 14])}
    with torch.no_grad():
        _, after = layer.step(torch.randn(2, WIDTH), inside)
    for h, before in zip(leaves(after["memory"]), leaves(inside["memory"]), strict=True):
        torch.testing.assert_close(h, before, rtol=0, atol=0, equal_nan=True)
        assert h.data_ptr() != before.data_ptr() or not h.numel()  # a caller may write into it


@pytest.mark.parametrize("block", list(BLOCKS))
def test_the_first_step_has_the_bits_of_all_others(block):
    model = built("mingru", **in_block(block))
    state, x = model.init_state(2), torch.randn(2, 3)
    with torch.no_grad():
        first, *others = (model.step(x, state) for _ in range(4))
        want = by_operators(model, x, state)
    assert first[0].stride() == want[0].stride()
    assert [h.is_contiguous() for h in leaves(first[1])] == [True] * len(leaves(first[1]))
    for y, after in others:
        assert torch.equal(y, first[0])
        assert all(map(torch.equal, leaves(after), leaves(first[1])))


def test_recording_draws_no_random_number():
    model = built(odd(ODD["draws random numbers"]))
    x, state = torch.randn(2, 3), model.init_state(2)
    with torch.no_grad():
        found = []
        for _ in range(2):  # the first is recorded, in vain
            torch.manual_seed(5)
            model.step(x, state)
            found.append(torch.rand(3))
    assert torch.equal(*found)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("word", DTYPES)
def test_a_layer_that_grows_stands_between_native_calls(block, word):
    dtype, batch = DTYPES[word]
    model = built("lru,attention,falcon_h1,gla", dtype, **{"n_layers": 4, **in_block(block)})
    state = model.init_state(batch)
    for t in range(6):
        x = torch.randn(batch, 3, dtype=dtype)
        want = by_operators(model, x, state)
        with torch.no_grad():
            got = model.step(x, state)
        same(got, want, TOLERANCE[dtype])
        state = got[1]
        if t == 3:  # with states that have grown, other weights are read
            with torch.no_grad():
                for p in model.parameters():
                    p.mul_(0.9)
    assert program(model) is None
    first, growing, joint, last = model.blocks
    assert all(
        program(part) is not None for part in (first, last, growing.mixer, joint.mixer.mamba)
    )
    behind = [kind for key, kind in _recorded_step._kinds[growing].items() if key[-1]]
    conv = "conv_width" in BLOCKS[block]  # stands before the mixer, and is no part of what follows
    assert [kind.program is not None for kind in behind] == ([] if conv else [True])


def test_explain_says_how_a_step_runs():
    model = built("lru")
    x, state = torch.randn(1, 3), model.init_state(1)
    assert explain(model.step, x, state).startswith("one native call of ")
    growing = built("attention")
    said = explain(growing.step, x, growing.init_state(1))
    assert said.startswith("PyTorch's operators around 4 native calls of ")  # of two layers
    assert said.endswith(" recorded instructions: its state is of another size after each step")
    writer = SequenceModel(7, 7, mixer="lru", d_model=8, n_layers=1, encoder="tokens").eval()
    token, state = torch.tensor([3]), writer.init_state(1)
    assert explain(writer.step, token, state).startswith("one native call of ")
    with torch.enable_grad():
        rows = _recorded_program._MOST_ROWS + 1
        said = explain(growing.step, torch.randn(rows, 3), growing.init_state(rows))
    assert said == "PyTorch's operators"
    rates = built("lru", tiers=(2,))
    said = explain(rates.step, x, rates.init_state(1))
    assert said.startswith("PyTorch's operators around ")
    assert said.endswith(" recorded instructions")


def test_a_rule_that_is_wrong_about_a_shape_reads_nothing_that_is_not_there():
    tape = Tape(F32)
    whole = tape.fresh((4, 6), F32)
    tape.put("move", whole.over((4, 6)), 1.0)
    for wrong in (whole._replace(shape=(5, 6)), whole._replace(offset=1), whole.over((2, 4, 7))):
        with pytest.raises(RefusedError, match="exp would leave a tensor"):
            tape.new("exp", wrong)


def test_what_is_remembered_is_bounded_and_goes_with_the_model():
    model = built("tanh_rnn")
    for batch, dtype in itertools.product(range(1, 13), (F32, F64, BF16)):
        x = torch.randn(batch, 3, dtype=dtype)
        settled(model.to(dtype), x, model.init_state(batch))
    assert len(_recorded_step._kinds[model]) <= Replays.MOST
    ref = weakref.ref(model)
    del model
    gc.collect()
    assert ref() is None
