"""One step of a recurrence: read once, kept as a graph, derived, and run by machines.

`linrnn.cells` is the part of it that people write cells with.
"""
