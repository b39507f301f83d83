"""Causal convolutions, and the systems of one input and one output that are such."""
