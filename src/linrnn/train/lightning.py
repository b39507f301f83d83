"""Lightning's trainer, made silent and left without what is ours."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.strategies import DDPStrategy, Strategy

from linrnn.train._checkpoint_io import SafetensorsIO
from linrnn.train._run_module import RunModule
from linrnn.train._together import Group
from linrnn.train.context import Run


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Lightning's banners and hints, which do not concern whoever trains with linrnn."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def make_trainer(run: Run, module: RunModule, callback: Callback) -> Trainer:
    """A Lightning trainer that leaves logging, checkpoints and display to ``callback``."""
    train, plan = run.config.train, run.plan
    return Trainer(
        max_epochs=plan.epochs - plan.start_step // plan.steps_per_epoch,
        accelerator=train.device,
        devices=module.group.size,
        strategy=strategy_of(module.group),
        precision="32-true" if train.precision == "auto" else train.precision,
        callbacks=[callback],
        plugins=[SafetensorsIO(run.folder, module.expected)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        reload_dataloaders_every_n_epochs=1,
        default_root_dir=run.folder.path,
    )


def strategy_of(group: Group) -> Strategy | str:
    """One device, or DDP over processes that are there already."""
    if group.size == 1:
        return "auto"
    # a layer may have parameters that a batch does not come to, such as a learned start of rows
    return DDPStrategy(cluster_environment=_Started(group), find_unused_parameters=True)


class _Started(ClusterEnvironment):
    """Processes of one machine that we have started, and who are in one group."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.group = group

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return "127.0.0.1"

    @property
    def main_port(self) -> int:
        return 0  # nobody asks: the group is there

    @staticmethod
    def detect() -> bool:
        return False

    def world_size(self) -> int:
        return self.group.size

    def set_world_size(self, size: int) -> None:
        pass

    def global_rank(self) -> int:
        return self.group.rank

    def set_global_rank(self, rank: int) -> None:
        pass

    def local_rank(self) -> int:
        return self.group.rank

    def node_rank(self) -> int:
        return 0
