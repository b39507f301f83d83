"""How far probabilities can be trusted: `predict_proba` of `linrnn.RecurrentClassifier`.

Prints, for every set of the UCR and UEA archives in the folder, the log loss of the test part in
nats, and its expected calibration error in per cent: the difference between confidence and
accuracy, in 15 bins of confidence, in the mean over the series. Before: a softmax of the scores as
the ridge has them. After: `predict_proba`. Beside it stands a logistic regression of all values,
standardised, of scikit-learn. A second table has what answers before the end of a series cost:
accuracy of `predict_early` with its usual tolerance, and how much of the series it read. Writes
``benchmarks/results/calibration-cpu.md``.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from _report import RESULTS, command_line, conditions, section, table, write_lines
from linrnn import RecurrentClassifier
from linrnn.tasks._reading.files import folder_of
from small_series import SETS, Padded, Split, read

_BINS = 15
_EARLY = 20  # lengths at which a series may be answered
Measured = tuple[float, float]
"""Calibration error in per cent, and log loss."""


def calibration_error(probabilities: np.ndarray, codes: np.ndarray) -> float:
    """Mean difference of confidence and accuracy, in bins of equal width."""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == codes
    bins = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    gaps = [abs(confidence[bins == k].sum() - right[bins == k].sum()) for k in range(_BINS)]
    return float(sum(gaps) / len(codes))


def softmax(scores: np.ndarray) -> np.ndarray:
    """Probabilities of scores as they are; of one score a row, those of two classes."""
    scores = np.stack([np.zeros_like(scores), scores], 1) if scores.ndim == 1 else scores
    powers = np.exp(scores - scores.max(1, keepdims=True))
    shares: np.ndarray = powers / powers.sum(1, keepdims=True)
    return shares


def judged(probabilities: np.ndarray, codes: np.ndarray) -> Measured:
    """Both numbers."""
    loss = log_loss(codes, probabilities, labels=np.arange(probabilities.shape[1]))
    return 100 * calibration_error(probabilities, codes), float(loss)


def measure(train: Split, test: Split, seeds: int) -> list[Measured]:
    """Before, after, and of the logistic regression; the means over seeds."""
    measured: list[list[Measured]] = []
    plain: Any = Padded(
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)), flat=True
    ).fit(train.x, train.y)
    codes = np.searchsorted(plain.model.classes_, test.y)
    regression = judged(plain.model.predict_proba(plain._array(test.x)), codes)
    for seed in range(seeds):
        model = RecurrentClassifier(random_state=seed).fit(train.x, train.y)
        scores = model.decision_function(test.x)
        after = judged(model.predict_proba(test.x), codes)
        measured.append([judged(softmax(scores), codes), after, regression])
    means = np.mean(measured, 0)  # (kinds, 2)
    return [(float(error), float(loss)) for error, loss in means]


def measure_early(train: Split, test: Split, seeds: int) -> list[float]:
    """Accuracy of whole series and of early answers, and the part that was read, in per cent."""
    measured = []
    for seed in range(seeds):
        model = RecurrentClassifier(early=_EARLY, random_state=seed).fit(train.x, train.y)
        answers = model.predict_early(test.x)
        whole = np.mean(model.predict(test.x) == np.array(test.y))
        read_part = np.mean(answers.steps / np.array([len(x) for x in test.x]))
        measured.append([whole, np.mean(answers.labels == np.array(test.y)), read_part])
    means: list[float] = (100 * np.mean(measured, 0)).tolist()
    return means


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--data", type=Path, help="the folder; default: timeseries in LINRNN_DATA")
    args = parser.parse_args()
    torch.set_num_threads(1)
    folder = args.data or folder_of("timeseries")
    rows, every, early = [], [], []
    for name in args.sets:
        train, test = (read(folder, name, part) for part in ("TRAIN", "TEST"))
        every.append(measure(train, test, args.seeds))
        cells = [f"{error:.1f} % / {loss:.3f}" for error, loss in every[-1]]
        rows.append([name, f"{len(train.y)} / {len(test.y)}", *cells])
        early.append(measure_early(train, test, args.seeds))
        print(*rows[-1], *early[-1], flush=True)
    means = np.mean(every, 0)
    rows.append(["mean", "", *(f"{error:.1f} % / {loss:.3f}" for error, loss in means)])
    early.append(np.mean(early, 0).tolist())
    early_rows = [
        [name, *(f"{share:.1f} %" for share in one)]
        for name, one in zip([*args.sets, "mean"], early, strict=True)
    ]
    head = ["set", "train / test", "before", "predict_proba", "logistic regression"]
    lines = [
        "# Probabilities of classes",
        "",
        *conditions(command_line(), ["scikit-learn"]),
        "- expected calibration error / log loss (nats) of the test part, the mean of "
        f"{args.seeds} seeds",
        "",
        *section("calibration", table(head, rows)),
        f"- with early={_EARLY}; accuracy in per cent",
        "",
        *section("early", table(["set", "the whole", "early", "part read"], early_rows)),
    ]
    write_lines(RESULTS / "calibration-cpu.md", lines)


if __name__ == "__main__":
    main()
