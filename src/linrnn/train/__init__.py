"""The loop around a model: configuration, run folder, checkpoints, plots."""
