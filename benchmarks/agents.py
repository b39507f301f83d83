"""Measure an update and a step of RecurrentPPO with memories of this library, beside its own LSTM.

Prints microseconds a sample of `train`, and steps a second of `collect_rollouts`, at rollouts of
256 steps of 8 environments with episodes of some tens of steps. All take turns; a ratio is the
median of those of the rounds, in which whatever else the machine does hits everyone alike. Writes
``benchmarks/results/agents-cpu.md``.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.callbacks import ConvertCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv

from _report import RESULTS, command_line, conditions, section, table, write_lines
from linrnn.interop.sb3 import RNNPolicy

ENVIRONMENTS, EPOCHS = 8, 2
THEIRS = "nn.LSTM"


class Noise(gymnasium.Env[Any, Any]):
    """Random observations in episodes of 20 to 200 steps: an environment that costs nothing."""

    observation_space = gymnasium.spaces.Box(-1, 1, (16,))
    action_space = gymnasium.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(20, 201))
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Go on."""
        self.left -= 1
        return self._look(), float(self.np_random.random()), self.left == 0, False, {}

    def _look(self) -> Any:
        return self.np_random.random(16, dtype=np.float32)


def agent(name: str, steps: int, width: int) -> RecurrentPPO:
    """An agent whose buffer holds a rollout."""
    options: dict[str, Any] = {"lstm_hidden_size": width}
    policy: Any = "MlpLstmPolicy"
    if name != THEIRS:
        policy, options["mixer"] = RNNPolicy, name
    env = DummyVecEnv([Noise] * ENVIRONMENTS)
    sizes = {"n_steps": steps, "batch_size": steps * ENVIRONMENTS // 4, "n_epochs": EPOCHS}
    made = RecurrentPPO(policy, env, policy_kwargs=options, seed=0, device="cpu", **sizes)
    made.set_logger(Logger(folder=None, output_formats=[]))  # without one a folder is made
    made._setup_learn(sys.maxsize)
    collect(made)
    return made


def collect(made: RecurrentPPO) -> None:
    """Play a rollout into the buffer."""
    callback = ConvertCallback(lambda *_: True)
    callback.init_callback(made)
    made.collect_rollouts(made.env, callback, made.rollout_buffer, made.n_steps)


def rounds_of(calls: Mapping[str, Callable[[], object]], rounds: int) -> list[dict[str, float]]:
    """Seconds of the processor a call, of each round in which all take turns."""
    found = []
    for _ in range(rounds):
        times = {}
        for name, call in calls.items():
            start = time.process_time()
            call()
            times[name] = time.process_time() - start
        found.append(times)
    return found


def measure(names: Sequence[str], steps: int, width: int, rounds: int) -> list[list[str]]:
    """A row for each memory."""
    agents = {name: agent(name, steps, width) for name in names}
    updates = rounds_of({name: made.train for name, made in agents.items()}, rounds)
    plays = rounds_of({n: lambda made=made: collect(made) for n, made in agents.items()}, rounds)
    samples = steps * ENVIRONMENTS
    rows = []
    for name in names:
        update = min(times[name] for times in updates) / (samples * EPOCHS)
        play = min(times[name] for times in plays) / samples
        ratios = [
            statistics.median(times[THEIRS] / times[name] for times in table)
            for table in (updates, plays)
        ]
        cells = [f"{1e6 * update:.1f}", f"{1 / play:,.0f}", *(f"{ratio:.1f}×" for ratio in ratios)]
        rows.append([name, *cells])
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few steps: does everything run?")
    parser.add_argument("--mixers", nargs="+", default=["mingru", "lru", "gru"])
    parser.add_argument("--steps", type=int, default=256, help="of a rollout (256)")
    parser.add_argument("--width", type=int, default=128, help="of each memory (128)")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch (1)")
    parser.add_argument("--rounds", type=int, default=7, help="of all candidates (7)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder (benchmarks/results)")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    steps, rounds = (16, 1) if options.quick else (options.steps, options.rounds)
    rows = measure([THEIRS, *options.mixers], steps, options.width, rounds)
    packages = ["torch", "sb3-contrib", "stable-baselines3"]
    lines = ["# Agents with memory on a CPU", "", *conditions(command_line(), packages)]
    lines += [
        f"- {ENVIRONMENTS} environments, {steps} steps, {options.width} channels, actor and critic",
        f"- processor time, the least of {rounds} rounds in turn; ratios: medians of the rounds'",
    ]
    head = ["memory", "update [µs a sample]", "steps a second", "update", "step"]
    lines += ["", *section("agents", table(head, rows))]
    print("\n".join(lines))
    write_lines(options.out / "agents-cpu.md", lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
