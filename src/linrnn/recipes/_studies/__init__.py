"""Studies that trained one model on many tasks: a table each, whose rows are recipes."""
