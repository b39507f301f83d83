import os
import signal
from dataclasses import replace

import pytest
from forked_runs import Server

from linrnn import train
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig

EPOCH_STEPS = 5  # 1,257 digits in batches of 256


@pytest.fixture(scope="session")
def tiny():
    """A digits run of three epochs of five steps, with every source of randomness in use."""
    return Config(
        task="digits",
        mixer="lru",
        mixer_options={"d_state": 4},
        model=ModelConfig(d_model=6, n_layers=1, dropout=0.2),
        optim=OptimConfig(lr=1e-2),
        train=TrainConfig(epochs=3, batch_size=256),
    )


@pytest.fixture(scope="session")
def finished(tiny, tmp_path_factory):
    """The result of a whole run of `tiny`; tests must not change its folder."""
    return train.run(tiny, out=tmp_path_factory.mktemp("finished") / "run")


@pytest.fixture(scope="session")
def server():
    """Starts commands in processes that may be killed."""
    with Server() as server:
        yield server


class SignalAt(train.Reporter):
    """Send this process a signal after a step, as a user's Ctrl-C does."""

    def __init__(self, step, number=signal.SIGINT):
        self.step, self.number = step, number

    def stepped(self, report):
        if report.step == self.step:
            os.kill(os.getpid(), self.number)


class CrashAt(train.Reporter):
    """End without a word after a step, as SIGKILL does: nothing is written after it."""

    def __init__(self, step):
        self.step = step

    def stepped(self, report):
        if report.step == self.step:
            raise ConnectionAbortedError


@pytest.fixture
def signal_at():
    return SignalAt


@pytest.fixture
def crash_at():
    return CrashAt


@pytest.fixture
def every_step(tiny):
    """`tiny` with a checkpoint after every step."""
    return replace(tiny, train=replace(tiny.train, checkpoint_minutes=1e-9))
