"""The block-recurrent transformer and the package block-recurrent-transformer-pytorch."""

from published.case import Case

SOURCE = "block-recurrent-transformer-pytorch 0.4.4"
NOTE = (
    "all heads share keys and values, which are turned and scaled by place; here each has its own"
)
CASES = [Case("block_recurrent", SOURCE, "default", "layer", None, note=NOTE)]
