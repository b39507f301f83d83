"""Derivatives of the past: which parameter moves which number of a state, and how much."""
