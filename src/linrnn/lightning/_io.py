"""Checkpoints of Lightning by the name of their file: without pickle where that is `NEWEST`."""

from pathlib import Path
from typing import Any

from lightning.fabric.plugins import TorchCheckpointIO

from linrnn.train.checkpoint import load_tree, save_tree

NEWEST = "last.safetensors"


class FolderIO(TorchCheckpointIO):
    """Reads and writes the newest checkpoint of a folder as `linrnn.train` does; others as usual.

    Those are what a ``ModelCheckpoint`` of the user's own asks for.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None:
        """Write a checkpoint; the newest one whole or not at all."""
        if Path(path).name == NEWEST:
            save_tree(checkpoint, Path(path))
        else:
            super().save_checkpoint(checkpoint, path, storage_options)

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Read a checkpoint."""
        if Path(path).name == NEWEST:
            checkpoint: dict[str, Any] = load_tree(Path(path))
            return checkpoint
        return super().load_checkpoint(path, *args, **kwargs)
