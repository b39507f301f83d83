"""Run folders without a training before them."""

from dataclasses import replace

from linrnn.train.checkpoint import save_tensors
from linrnn.train.folder import RunFolder
from linrnn.train.model import build_model, build_task


def untrained(config, path, pool="last", **changes):
    """A folder with the initial weights of a configuration; ``pool`` and others are changed."""
    config = replace(config, model=replace(config.model, pool=pool), **changes)
    task = build_task(config)
    folder = RunFolder.create(path, config, task.run_files())
    save_tensors(build_model(config, task).state_dict(), folder.model)
    return path
