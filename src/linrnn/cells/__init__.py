"""The recurrence compiler: one step, written in PyTorch, becomes a graph, and that every form."""
