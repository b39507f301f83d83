"""One step of a recurrence that writes its state in place: what a decoder calls at every token.

No gradients, no resets, no new state: the state is written where it lies, and everything is checked
once for each kind of call. A step that learns is a scan of one step.
"""

from linrnn.ops.updates.conv import conv_update as conv_update
from linrnn.ops.updates.delta import delta_update as delta_update
from linrnn.ops.updates.outer import outer_update as outer_update
from linrnn.ops.updates.selective import selective_update as selective_update

__all__ = ["conv_update", "delta_update", "outer_update", "selective_update"]
