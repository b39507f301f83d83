"""Liquid-S4 and the code of its authors."""

from published.case import Case

SOURCE = "raminmh/liquid-s4@06031dc, S4"
NOTE = "its products of inputs begin at the end of the sequence, so that no step could give them"
CASES = [Case("liquid_s4", SOURCE, "default", "layer", None, note=NOTE)]
