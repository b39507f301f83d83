"""Lightning's trainer, made silent and left without what is ours."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from lightning.pytorch import Callback, Trainer

from linrnn.train._checkpoint_io import SafetensorsIO
from linrnn.train._context import Run
from linrnn.train._run_module import RunModule


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
        devices=1,
        precision=train.precision,
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
