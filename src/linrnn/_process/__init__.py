"""The process: memory, signals, threads that take turns, what a ``with`` block sets."""
