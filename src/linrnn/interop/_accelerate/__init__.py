"""Other people's models on our ops: what is replaced by what, in a model or in the process."""
