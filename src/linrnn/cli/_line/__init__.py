"""A command line: how it is read, and how the answer is written."""
