"""Values against annotations, errors of readers, and how much memory a model may ask for."""

import math
import struct
from dataclasses import dataclass
from typing import Any, Literal

import pytest
import torch

from linrnn import SequenceModel, mixers
from linrnn._files.reading import reading, why
from linrnn._options.schema import AnyFloat, check_type, record
from linrnn._process.memory import available, within
from linrnn.errors import (
    ArgumentError,
    DataError,
    LinrnnError,
    MissingExtraError,
    RunFolderError,
    UnknownNameError,
    show,
)

pytestmark = pytest.mark.unchecked

GOOD = [
    (int, -(2**63) + 1),
    (float, 3),
    (float, 1e-320),
    (AnyFloat, math.nan),
    (AnyFloat, -math.inf),
    (AnyFloat, 3),
    (AnyFloat | None, None),
    (str, "é"),
    (bool, False),
    (int | None, None),
    (Literal["a", "b"], "b"),
    (Literal[32, 64], 64),
    (tuple[float, float], (0.9, 1)),
    (tuple[str, ...], ()),
    (dict[str, Any], {"a": None}),
    (Any, object()),
    (list[Any], [1, "x"]),
]
BAD = [
    (int, True, "must be int, got True"),
    (int, 1.0, "must be int, got 1.0"),
    (int, 2**63, "must be an int below 2\\^63 in size, got 9223372036854775808"),
    (int, 10**5000, "must be an int below 2\\^63 in size, got a huge int"),
    (int | None, 2**63, "must be an int below 2\\^63 in size or NoneType"),
    (float, math.nan, "must be a finite float, got nan"),
    (float, 10**400, "must be a finite float, got 1000"),
    (float, "1", "must be float, got '1'"),
    (float, False, "must be float, got False"),
    (AnyFloat, "nan", "must be float, got 'nan'"),
    (AnyFloat, True, "must be float, got True"),
    (str, "\ud800", "must be text that UTF-8 can hold"),
    (str, b"x", "must be str"),
    (bool, 1, "must be bool, got 1"),
    (Literal[32, 64], True, "must be one of 32, 64, got True"),
    (Literal[32, 64], "32", "must be one of 32, 64, got '32'"),
    (Literal[0, 1], True, "must be one of 0, 1, got True"),
    (tuple[float, float], (0.9,), "got \\(0.9,\\)"),
    (tuple[float, float], (0.9, "0.999"), "got \\(0.9, '0.999'\\)"),
    (tuple[float, float], "ab", "got 'ab'"),
    (tuple[str, ...], ("a", "\ud800"), "tuple"),
    (dict[str, Any], {1: 2}, "got {1: 2}"),
    (dict[str, int], [], "got \\[\\]"),
]


@pytest.mark.parametrize(("hint", "value"), GOOD)
def test_values_that_fit(hint, value):
    check_type("here", "it", hint, value)


@pytest.mark.parametrize(("hint", "value", "said"), BAD, ids=range(len(BAD)))
def test_values_that_do_not_fit(hint, value, said):
    with pytest.raises(ArgumentError, match=f"^here: it .*{said}") as caught:
        check_type("here", "it", hint, value)
    assert len(str(caught.value)) < 200


def test_a_word_that_is_not_known_is_compared_with_those_that_are():
    with pytest.raises(UnknownNameError, match="Did you mean 'batch'"):
        check_type("here", "it", Literal["batch", "none"], "btch")


@dataclass(frozen=True, kw_only=True)
class Sample:
    size: int
    betas: tuple[float, float] = (0.0, 0.0)
    rate: float = 1.0
    place: str = ""


def test_a_record_is_made_of_a_table():
    fields = record("here", Sample, {"size": 1, "betas": [0, 1], "rate": 2})
    assert fields == {"size": 1, "betas": (0.0, 1.0), "rate": 2.0}
    assert all(type(b) is float for b in (*fields["betas"], fields["rate"]))
    assert record("here", Sample, {"size": 1, "new": 2}, more=True) == {"size": 1}
    assert record("here", Sample, {}, optional=["size", "betas", "rate", "place"]) == {}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([], r"^here: the content must be a table, got \[\]"),
        ({}, "size must be given"),
        ({"size": "1"}, "size must be int"),
        ({"size": 1, "betas": [1]}, "betas must be"),
        ({"size": 1, "betas": ["a", "b"]}, "betas must be"),
        ({"size": 1, "rate": 10**400}, "rate must be a finite float"),
        ({"size": 1, "sise": 2}, "Did you mean 'size'"),
        ({"size": 1, "place": "/"}, "no option named 'place'"),
    ],
)
def test_a_table_that_is_no_record_is_refused(values, said):
    with pytest.raises(LinrnnError, match=said):
        record("here", Sample, values, left_out=["place"])


class PanicException(BaseException):
    """As a library in Rust raises where it gives up."""


RAISED = [
    *(OSError(5, "Input/output error"), ValueError("x"), TypeError("x"), KeyError("x")),
    *(OverflowError("x"), RecursionError("x"), MemoryError(), struct.error("x"), IndexError("x")),
    *(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x"), AttributeError("x"), EOFError()),
    *(ZeroDivisionError("x"), RuntimeError("a\nb"), AssertionError("x"), PanicException("x")),
    *(ArgumentError("here: x."), UnknownNameError("mixer", "x", ["y"])),
]


@pytest.mark.parametrize("reason", RAISED, ids=lambda e: type(e).__name__)
def test_what_a_reader_raises_becomes_an_error_that_names_the_file(reason):
    with (
        pytest.raises(
            DataError, match=r"^x\.bin: the file must be whole, got: .+\. Copy it\.$"
        ) as e,
        reading("x.bin", DataError, "be whole", "Copy it."),
    ):
        raise reason
    assert "\n" not in str(e.value)
    assert e.value.__cause__ is reason


@pytest.mark.parametrize(
    "reason", [RunFolderError("x"), MissingExtraError("a", "b", "c"), KeyboardInterrupt()]
)
def test_what_is_not_about_the_content_passes(reason):
    with pytest.raises(type(reason)) as e, reading("x.bin", DataError, "be whole"):
        raise reason
    assert e.value is reason


def test_a_reason_is_short_and_on_one_line():
    assert why(ValueError("a\n b " + "c" * 1000)).startswith("a b ccc")
    assert len(why(ValueError("c" * 1000))) < 310
    assert why(EOFError()) == "EOFError()"
    assert show("a" * 1000).endswith("...")


@pytest.mark.parametrize("mixer", mixers.names())
def test_a_limit_changes_no_weight_and_costs_what_the_weights_take(mixer):
    def build():
        torch.manual_seed(0)
        return SequenceModel(3, 5, mixer=mixer, d_model=16, n_layers=2).state_dict()

    expected = build()
    size = sum(x.numel() * x.element_size() for x in expected.values())
    room = max(8 * size, 1 << 20)  # what a start is computed from may be larger than small weights
    with within(room, ArgumentError, "too large"):
        found = build()
    assert all(torch.equal(x, found[name]) for name, x in expected.items())
    with (
        pytest.raises(ArgumentError, match="too large"),
        within(size // 2, ArgumentError, "too large"),
    ):
        build()


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(1 << 40),
        lambda: torch.zeros(1 << 20, 1 << 20),
        lambda: torch.arange(1 << 40),
        lambda: torch.eye(1 << 20),
        lambda: torch.ones(1).expand(1 << 40).clone(),
        lambda: torch.ones(1 << 17)[:, None] * torch.ones(1 << 17),
        lambda: torch.ones(1 << 17, 1) @ torch.ones(1, 1 << 17),
        lambda: torch.ones(2).repeat(1 << 40),
        lambda: torch.ones(2).new_zeros(1 << 40),
        lambda: torch.empty(1 << 62, 1 << 62),
        lambda: torch.empty(10**30),
        lambda: [torch.empty(1 << 16) for _ in range(1000)],
    ],
)
def test_what_does_not_fit_is_not_asked_for(make):
    with (
        pytest.raises(ArgumentError, match="too large"),
        within(16 << 20, ArgumentError, "too large"),
    ):
        make()


def test_views_and_what_is_there_already_cost_nothing():
    x = torch.ones(1 << 20)
    with within(1 << 16, ArgumentError, "too large"):
        x.view(1024, 1024).t().mul_(1).expand(3, 1024, 1024)
        x.normal_()


def test_an_error_of_another_kind_passes_a_limit():
    with pytest.raises(UnknownNameError, match="batch"), within(1 << 20, DataError, "too large"):
        SequenceModel(1, 1, norm="btch")
    with pytest.raises(RuntimeError, match="mat1"), within(1 << 20, DataError, "too large"):
        torch.ones(2, 3) @ torch.ones(2, 3)


def test_there_is_memory():
    assert 1 << 26 < available() < 1 << 50
