"""Memformer and the package memformer."""

from published.case import Case

SOURCE = "memformer 0.3.1, Memformer"
NOTE = "an encoder and a decoder share its memory; here each layer of a decoder has its own"
CASES = [Case("memformer", SOURCE, "default", "layer", None, note=NOTE)]
