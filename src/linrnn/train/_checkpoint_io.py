"""The format of checkpoints, for Lightning."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.fabric.plugins import CheckpointIO

from linrnn._files.storage import remove
from linrnn.train._restored import Expected, restore_point
from linrnn.train.checkpoint import save_tree
from linrnn.train.folder import RunFolder


class SafetensorsIO(CheckpointIO):
    """Lightning's checkpoints in the format of `linrnn.train.checkpoint`, which runs no code.

    Args:
        folder: the newest but one of its checkpoints is kept.
        expected: what those that are read must agree with.
    """

    def __init__(self, folder: RunFolder, expected: Callable[[], Expected]) -> None:
        self.folder, self.expected = folder, expected

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Write a checkpoint, all of it or nothing."""
        newest = Path(path) == self.folder.last
        keep = self.folder.previous if newest else None
        save_tree(checkpoint, Path(path), keep=keep, inside=self.folder.path)

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint onto the CPU; Lightning moves it to where it belongs."""
        return restore_point(Path(path), self.expected(), inside=self.folder.path)

    def remove_checkpoint(self, path: Any) -> None:
        """Delete a checkpoint."""
        remove(Path(path), inside=self.folder.path)
