"""The token Turing machine and the code of its authors."""

from published.case import Case

SOURCE = "google-research/scenic@4a38d47, TokenTuringMachineUnit"
NOTE = "its unit is an encoder of twelve heads with biases and a last norm; here it has one head"
CASES = [Case("token_turing_machine", SOURCE, "default", "layer", None, note=NOTE)]
