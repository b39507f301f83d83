"""Lightning's messages that concern nobody who calls `fit`, left out."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_LOGGERS = tuple(
    logging.getLogger(f"lightning.pytorch.{name}")
    for name in ("utilities.rank_zero", "trainer.connectors.checkpoint_connector")
)
_LINES = (
    "\N{ELECTRIC LIGHT BULB} Tip:",
    "TPU available:",
    "Loading `train_dataloader` to estimate",
    "`weights_only` was not set",
)
_WARNINGS = (
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",  # of Lightning's own code
    "You defined a `validation_step` but have no `val_dataloader`",  # as fit may be called
)


def _concerns(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(_LINES)


@contextmanager
def without_hints() -> Iterator[None]:
    """Inside, Lightning advertises no other package and does not warn of what `fit` itself does.

    Its other messages stay: which device computes, and why it stopped.
    """
    for logger in _LOGGERS:
        logger.addFilter(_concerns)
    with warnings.catch_warnings():
        for start in _WARNINGS:
            warnings.filterwarnings("ignore", start)
        try:
            yield
        finally:
            for logger in _LOGGERS:
                logger.removeFilter(_concerns)
