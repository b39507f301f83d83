"""SaShiMi beside a plain stack of S4 on raw sound, and a second of what it says."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from linrnn import recipes, sound
from linrnn.compare import Row
from linrnn.compare.match import count_parameters
from linrnn.compare.tune import with_rates
from linrnn.generation import generate
from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.beside import table
from linrnn.reproductions._page.runs import Runs
from linrnn.reproductions._page.verdict import Judged
from linrnn.reproductions._runs.language import curves
from linrnn.reproductions._runs.trained import Outcome, orders, problems
from linrnn.reproductions._runs.tuned import budget, tuned
from linrnn.train import Config, load_model
from linrnn.train.figures import new_figure

PLAIN_LAYERS = 4
SASHIMI, PLAIN = "SaShiMi", f"S4, {PLAIN_LAYERS} layers at one rate"
RATES = (0.001, 0.003, 0.01)
_NLL = "negative log-likelihood (bits per sample)"


class SashimiSound(Reproduction):
    """Likelihood of the next sample of spoken digits, and a second of generated sound.

    The configuration is that of the recipe ``sound``. Beside it stands a stack of the same blocks
    at one rate, with the same number of parameters, the same data and as many updates. Each has the
    best of three learning rates, by the validation data and the first seed. The sound
    is made by the SaShiMi of the first seed, one sample after the other, after silence.

    Args:
        base: configuration to run in place of the recipe's.
        seconds: of sound.
    """

    summary: ClassVar[str] = "SaShiMi and a plain stack of S4 on raw sound, and what it sounds like"
    source: ClassVar[str] = "Goel et al. 2022, arXiv:2202.09729, Tables 2, 4 and 6"
    scales: ClassVar[Mapping[str, str]] = {
        "cpu": (
            "models of 0.26 million parameters on 2 minutes of the spoken digits, 8 kHz, 4 epochs; "
            "shows which is likelier after short training; what is generated is a voice without "
            "words; about 55 minutes of processor time with five seeds, a third of them for tuning"
        )
    }
    published: ClassVar[tuple[Table, ...]] = (
        Table(
            f"Test {_NLL}",
            ["model", "Beethoven", "YouTubeMix", "SC09"],
            [
                ["SampleRNN", "1.125", "1.723", "2.042"],
                ["WaveNet", "1.032", "1.449", "1.925"],
                ["SaShiMi", "0.946", "1.294", "1.891"],
            ],
        ),
    )

    def __init__(self, base: Config | None = None, seconds: float = 1.0) -> None:
        self.base, self.seconds = base, seconds

    def run(self, setting: Setting) -> Findings:
        """Train both, and let one of them speak."""
        base = self.base or recipes.load("sound").config
        candidates = {
            label: with_rates(config, RATES)
            for label, config in ((SASHIMI, base), (PLAIN, plain(base)))
        }
        search = tuned(NAME, candidates, setting)
        outcome = search.outcome
        figures, files = curves([outcome]), {}
        codes = _spoken(outcome, self.seconds)
        if codes is not None:
            task: Any = outcome.task
            samples = sound.decode(codes, task.coding)
            files["sashimi.wav"] = sound.wav_bytes(samples, task.rate)
            recorded = sound.decode(task.clips[2].codes[: len(codes)], task.coding)
            figures["waveform"] = waveforms({"recorded": recorded, "generated": samples}, task.rate)
        return Findings(
            tables=(table(outcome, {}), search.tried),
            verdicts=orders(self, setting),
            comparable=(
                "the order of the two models at this size, and nothing else: data, models and "
                "training are far smaller than the published ones, at 8 and not 16 kHz. The paper "
                "compares with WaveNet and SampleRNN."
            ),
            notes=(*NOTES, budget(RATES), *problems(outcome)),
            complete=not outcome.problem,
            figures=figures,
            files=files,
        )

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """Whether the test data is likelier under SaShiMi."""
        part = runs.part(NAME)
        text = "the test data is likelier under SaShiMi than under as large a stack of S4"
        source = "ours: SaShiMi before the models of its time; no such stack is printed"
        return [part.claim(SASHIMI, PLAIN, text, source)] if part.has(SASHIMI, PLAIN) else []


NAME = "spoken digits"
NOTES = (
    "the metric is the negative log-likelihood of a sample, one of 256 codes of mu-law, in bits, "
    "over all windows of the test recordings; every window begins without a past. The speakers of "
    "the test are those of the training.",
    "the plain stack has four of the same blocks, as wide as gives it as many parameters, all of "
    "them at the rate of the samples.",
    "sashimi.wav is one second, drawn at temperature 1 after silence by the first seed's SaShiMi, "
    "read one sample at a time from its state.",
)


def plain(base: Config) -> Config:
    """The stack at one rate with as many parameters, its feed-forward part in proportion."""
    target = count_parameters(base)
    ratio = (base.model.d_ffn or 4 * base.model.d_model) / base.model.d_model

    def made(width: int) -> Config:
        sizes = {"d_model": width, "d_ffn": round(ratio * width), "n_layers": PLAIN_LAYERS}
        return replace(base, model=replace(base.model, tiers=(), unet=False, **sizes))

    low, high = 1, 2
    while count_parameters(made(high)) < target:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count_parameters(made(middle)) < target else (low, middle)
    return min((made(low), made(high)), key=lambda config: abs(count_parameters(config) - target))


def waveforms(samples: Mapping[str, np.ndarray], rate: int) -> Any:
    """Sounds below one another.

    Args:
        samples: by name, in [-1, 1].
        rate: samples a second.
    """
    figure = new_figure(8.6, 1.0 + 1.8 * len(samples))
    panels = figure.subplots(len(samples), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, (name, x) in zip(panels, samples.items(), strict=True):
        axes.plot(np.arange(len(x)) / rate, x, color="black", linewidth=0.5)
        axes.set(ylabel=name)
        axes.grid(alpha=0.3)
    panels[-1].set(xlabel="seconds")
    return figure


def _spoken(outcome: Outcome, seconds: float) -> np.ndarray | None:
    """Codes that the SaShiMi of the first seed makes, None if it was not trained."""
    row: Row | None = next((r for r in outcome.rows if r.label == SASHIMI and r.values), None)
    finished = [] if row is None else [f for f in row.folders if (f / "result.json").is_file()]
    if not finished:
        return None
    model, task, _ = load_model(finished[0])
    spoken: Any = task
    start = [sound.silence(spoken.coding)]
    count = round(seconds * spoken.rate)
    return np.array(list(generate(model, start, count, seed=0)), np.int64)
