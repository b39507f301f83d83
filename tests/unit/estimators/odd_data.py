"""Data as people have it, and worse: what every entry point of the estimators is tried on."""

import datetime
import signal
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from linrnn.errors import LinrnnError

SECONDS = 20
WRONG_VALUES = (
    None, True, 0, -1, 1, 2, 10**9, 10**30, -(10**9), 0.0, 0.5, 1.0, 1.5, 1e300, float("nan"),
    float("inf"), "", "x", "auto", b"x", (), (3,), [], [2, 5], {}, {"x": 1}, object(), np.ones(2),
    torch.ones(1), 1j,
)  # fmt: skip
# a series, and a table of them in two classes, that are in order
WAVE = np.sin(np.arange(48) / 2) + 0.1 * np.cos(np.arange(48) ** 2)
KIND = np.arange(12) % 2
TABLE = np.sin(np.arange(30) / (2 + KIND[:, None])) + 0.05 * np.cos(np.arange(360.0)).reshape(
    12, 30
)
SMALL = {"n_modes": 6, "random_state": 0}


class TooSlow(BaseException):
    """Not one that anything takes for an error of its data."""


@contextmanager
def in_time(seconds=SECONDS):
    """Check that the body ends soon."""

    def ring(*_):
        raise TooSlow

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def judge(name, call):
    """Violations of the law: the answer is finite, or an error of ours."""
    try:
        with in_time(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answer = call()
    except LinrnnError as error:
        return None if len(str(error)) < 2000 else f"{name}: a message of {len(str(error))} letters"
    except TooSlow:
        return f"{name}: took more than {SECONDS} s"
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        return f"{name}: {type(error).__module__}.{type(error).__name__}: {str(error)[:120]}"
    return None if finite(answer) else f"{name}: {str(answer)[:120]}"


def finite(answer):
    """Whether all numbers of an answer are."""
    if isinstance(answer, dict):
        return all(finite(part) for part in answer.values())
    if isinstance(answer, (tuple, list)):
        return all(finite(part) for part in answer)
    if isinstance(answer, torch.Tensor):
        return bool(answer.isfinite().all())
    array = np.asarray(answer)
    return bool(np.isfinite(array).all()) if array.dtype.kind in "iufc" else True


def none_breaks(cases):
    """Every case keeps the law."""
    broken = [said for name, call in cases.items() if (said := judge(name, call))]
    assert broken == [], "\n".join(broken)


def series_of(wave):
    """One series (time,), in every form."""
    n, big = len(wave), np.float64(1e300)
    spiked = wave.copy()
    spiked[n // 2] = big
    forms = {
        "list": wave.tolist(),
        "tuple": tuple(wave.tolist()),
        "float32": wave.astype(np.float32),
        "integers": (10 * wave).astype(np.int64),
        "bytes": np.arange(n, dtype=np.uint8),
        "bool": wave > 0,
        "column": wave[:, None],
        "row": wave[None],
        "three axes": wave[:, None, None],
        "scalar": wave[0],
        "tensor": torch.tensor(wave),
        "tensor with a gradient": torch.tensor(wave, requires_grad=True),
        "bfloat16": torch.tensor(wave).bfloat16(),
        "complex": wave * 1j,
        "complex tensor": torch.tensor(wave * 1j),
        "masked": np.ma.masked_array(wave, wave > 0.5),
        "masked, nothing": np.ma.masked_array(wave, False),
        "masked, all": np.ma.masked_array(wave, True),
        "object": wave.astype(object),
        "object with None": np.array([None, *wave[1:]], dtype=object),
        "huge integers": [10**400] * n,
        "text": wave.astype(str),
        "words": ["a"] * n,
        "dates": np.arange(n).astype("datetime64[D]"),
        "time differences": np.arange(n).astype("timedelta64[s]"),
        "list of dates": [datetime.date(2020, 1, 1)] * n,
        "records": np.zeros(n, dtype=[("a", float), ("b", int)]),
        "empty": wave[:0],
        "empty list": [],
        "one value": wave[:1],
        "two values": wave[:2],
        "ragged": [wave, wave[: n // 2]],
        "None": None,
        "a word": "series",
        "a number": 3,
        "a dictionary": {"y": wave},
        "a generator": (value for value in wave),
        "an object": object(),
        "zeros": np.zeros(n),
        "constant": np.full(n, 0.1),
        "huge constant": np.full(n, 1e300),
        "tiny": 1e-320 * wave,
        "huge": 1e300 * wave,
        "too huge": 1.7e308 * np.sign(wave + 1e-3),
        "one huge": spiked,
        "NaN": np.full(n, np.nan),
        "one NaN": np.where(np.arange(n) == 3, np.nan, wave),
        "infinity": np.full(n, np.inf),
        "one infinity": np.where(np.arange(n) == 3, -np.inf, wave),
        "negative zero": np.full(n, -0.0),
        "read-only": _read_only(wave),
        "backwards": wave[::-1],
        "big-endian": wave.astype(">f8"),
        "growing": np.exp(np.arange(n) * 2.0),
    }
    return forms | _with_pandas(wave)


def _read_only(wave):
    copy = wave.copy()
    copy.flags.writeable = False
    return copy


def _with_pandas(wave):
    pd = pytest.importorskip("pandas")
    n = len(wave)
    days = pd.date_range("2020-01-01", periods=n, freq="D")
    return {
        "pandas": pd.Series(wave, days),
        "pandas, twice a day": pd.Series(wave, days[:1].append(days[:-1])),
        "pandas, a gap": pd.Series(wave, days.delete(3).append(days[-1:] + pd.Timedelta(days=1))),
        "pandas, no order": pd.Series(wave, days[::-1]),
        "pandas, text": pd.Series(wave.astype(str), days),
        "pandas, nullable": pd.Series(wave).convert_dtypes(),
        "pandas, dates": pd.Series(days),
        "pandas, categories": pd.Series(pd.Categorical(["a"] * n)),
        "frame": pd.DataFrame({"a": wave, "b": wave + 1}, days),
        "frame, alike": pd.DataFrame(np.stack([wave, wave], 1), days, columns=["a", "a"]),
        "frame, other names": pd.DataFrame(np.stack([wave, wave], 1), days, columns=[1, "a"]),
        "frame, dates": pd.DataFrame({"a": wave, "b": days}, days),
        "frame, no columns": pd.DataFrame(index=days),
        "frame, levels of columns": pd.DataFrame(
            np.stack([wave, wave], 1), days, pd.MultiIndex.from_product([["a"], ["b", "c"]])
        ),
        "pandas, levels": pd.Series(wave, pd.MultiIndex.from_product([["a"], days])),
        "frame, levels": pd.DataFrame({"a": wave}, pd.MultiIndex.from_product([days, ["a"]])),
    }
