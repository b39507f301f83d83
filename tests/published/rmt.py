"""The recurrent memory transformer and its packages."""

from published.case import Case

SOURCE = "recurrent-memory-transformer-pytorch 0.7.0"
NOTE = "a memory goes from the last layer of the model to its first; here each layer has its own"
CASES = [Case("rmt", SOURCE, "default", "layer", None, note=NOTE)]
