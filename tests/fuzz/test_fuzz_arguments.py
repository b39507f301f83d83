"""Ops called wrongly: an answer of the right shape or one of our errors, never another."""

import warnings

import numpy as np
import pytest
import torch
import torch.distributed as dist
from fuzzing import BUDGETS, run, share
from hypothesis import strategies as st
from torch import Tensor

from linrnn import ops
from linrnn.errors import LinrnnError

pytestmark = pytest.mark.unchecked

KINDS = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
    *(torch.complex128, torch.complex32, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.uint16),
)
OBJECTS = (
    *(None, True, False, 0, 1, -1, 2**70, 1.5, float("nan"), float("inf"), 1j, "x", "", "cpu"),
    *("tree", "triton", "auto", b"x", [], [1.0, 2.0], [[1.0]], (), {}, {"a": 1}, object(), len),
    *(
        np.zeros((2, 3, 4), np.float32),
        np.array(["x"]),
        np.float32(1),
        torch.float32,
        torch.Size((2,)),
    ),
    *(torch.device("meta"), torch.nn.Linear(1, 1)),
)
OFFSETS = (
    *([], [0], [3], [0, 3], [0, 1, 3], [1, 3], [0, 2], [0, 4], [0, 2, 1, 3], [3, 0], [-1, 3]),
    *([0, 0, 3, 3], [0, 2**31, 3], [0, -(2**62), 3], [0, 2**62], [0, 10**6, 3], [0, 3, 2**40]),
)


def tensor(shape, kind, form):
    """A tensor of ones of any kind and form; None where PyTorch makes none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of half-precision complex numbers
            x = torch.ones(shape, dtype=torch.float32).to(kind)
        if form == "meta":
            return x.to("meta")
        if form == "sparse":
            return x.to_sparse()
        if form == "expanded":
            return x[..., :1].expand(*shape[:-1], 5) if shape else x.expand(3)
        if form == "leaf":
            return x.requires_grad_()
        if form == "parameter":
            return torch.nn.Parameter(x, requires_grad=x.is_floating_point())
        if form == "nan":
            return x.fill_(float("nan"))
        if form == "nested":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return torch.nested.nested_tensor([x, x])
        return x
    except (RuntimeError, NotImplementedError, TypeError):
        return None


FORMS = ("plain",) * 4 + ("meta", "sparse", "expanded", "leaf", "parameter", "nan", "nested")
SHAPES = st.lists(st.sampled_from((0, 1, 2, 3, 4)), max_size=5).map(tuple)
TENSORS = st.builds(tensor, SHAPES, st.sampled_from(KINDS), st.sampled_from(FORMS))
ODD = st.one_of(st.sampled_from(OBJECTS), TENSORS)


@st.composite
def offsets(draw):
    """Offsets of packed sequences, most of them wrong."""
    kind = draw(st.sampled_from((torch.int64, torch.int32, torch.uint8, torch.bool, torch.float32)))
    values = draw(
        st.one_of(st.sampled_from(OFFSETS), st.lists(st.integers(-2, 5), max_size=5).map(list))
    )
    x = torch.tensor(values, dtype=torch.int64)
    if kind is not torch.int64:
        x = x.to(kind)
    form = draw(st.integers(0, 6))
    if form == 0:
        return x.to("meta")
    if form == 1:
        return x[None]
    if form == 2 and len(x):
        return x[:1].expand(3)
    if form == 3:
        return torch.stack([x, x], -1)[..., 0]
    return x


LAYOUT = {
    "initial_state": None,
    "reset": None,
    "cu_seqlens": None,
    "reverse": False,
    "backend": None,
}


def usual(name):
    """Arguments an op accepts."""
    ones = torch.ones
    if name == "gated_scan":
        x = ones(1, 3, 2, 4)
        return {"x": x, "positive": False, "normalise": True, "start": 0.0, **LAYOUT}
    if name == "selective_scan":
        sequences = {
            "x": ones(1, 3, 4),
            "dt": ones(1, 3, 4),
            "B": ones(1, 3, 5),
            "C": ones(1, 3, 5),
        }
        options = {"D": None, "z": None, "dt_bias": None, "dt_softplus": False, "b_disc": "euler"}
        return {**sequences, "A": -ones(4, 5), **options, **LAYOUT}
    if name in ("outer_scan", "delta_scan"):
        steps = {"q": ones(1, 3, 2, 5), "k": ones(1, 3, 2, 5), "v": ones(1, 3, 4, 2), "g": None}
        own = ("beta", "a", "b") if name == "delta_scan" else ("value_decay", "bonus")
        return {**steps, **dict.fromkeys(own), "scale": 1.0, **LAYOUT}
    if name == "causal_conv":
        return {"x": ones(1, 3, 4), "weight": ones(4, 2), "bias": None, "silu": False, **LAYOUT}
    if name == "fft_conv":
        return {"x": ones(1, 3, 4), "kernel": ones(4, 2), **LAYOUT}
    if name == "block_scan":
        return {"A": ones(2, 2), "b": ones(1, 3, 2), "rows": None, "columns": None, **LAYOUT}
    if name == "log_linear_scan":
        return {"log_a": ones(4), "log_b": ones(1, 3, 4), **LAYOUT}
    plain = {"a": ones(4), "b": ones(1, 3, 4)}
    if name == "distributed_linear_scan":
        return plain | {n: x for n, x in LAYOUT.items() if n != "cu_seqlens"}
    return plain | LAYOUT


OPS = {
    "linear_scan": 40,
    "log_linear_scan": 20,
    "block_scan": 20,
    "gated_scan": 20,
    "selective_scan": 20,
    "outer_scan": 20,
    "delta_scan": 20,
    "fft_conv": 15,
    "fft_scan": 15,
    "causal_conv": 15,
    "distributed_linear_scan": 15,
    "explain": 10,
}
for _op, _cases in OPS.items():
    share(f"arguments of {_op}", _cases)


@st.composite
def calls(draw, name):
    """A good call of which one or two arguments were replaced."""
    arguments = usual(name)
    if "cu_seqlens" in arguments and draw(st.integers(0, 2)) == 0:
        arguments["cu_seqlens"] = draw(offsets())
    for _ in range(draw(st.integers(0, 2))):
        key = draw(st.sampled_from(sorted(arguments)))
        arguments[key] = draw(ODD)
    if draw(st.integers(0, 3)) == 0 and "reset" in arguments:
        shape = draw(st.sampled_from(((1, 3), (2, 3), (3,), (1, 3, 1), (0,))))
        arguments["reset"] = torch.zeros(shape, dtype=torch.bool)
    return arguments


@pytest.fixture(scope="module")
def group():
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def checker(name):
    op = getattr(ops, name)
    by_x = ("gated_scan", "selective_scan", "causal_conv", "fft_conv")
    main = dict.fromkeys(by_x, "x").get(name, "b")
    main = {"log_linear_scan": "log_b", "outer_scan": "v", "delta_scan": "v"}.get(name, main)

    def check(arguments):
        try:
            found = op(**arguments)
        except LinrnnError:
            return
        if name == "explain":
            assert isinstance(found, str)
            return
        outputs, final = found
        x = arguments[main]
        assert isinstance(x, Tensor)
        assert isinstance(final, Tensor)
        expected = (*x.shape[:2], x.shape[3]) if name == "gated_scan" else tuple(x.shape)
        assert tuple(outputs.shape) == expected
        if outputs.device.type != "meta":
            outputs.sum().item()

    return check


@BUDGETS
@pytest.mark.parametrize("name", OPS)
def test_op_answers_or_refuses(name, times, group):
    run(f"arguments of {name}", times, calls(name), checker(name))


NO_BACKEND = ["x", "", *(x for x in OBJECTS if x is not None and not isinstance(x, str))]


@pytest.mark.parametrize("value", NO_BACKEND, ids=lambda x: type(x).__name__)
def test_use_backend_refuses_what_is_none(value):
    with pytest.raises(LinrnnError, match="no use_backend backend named"), ops.use_backend(value):
        pass
