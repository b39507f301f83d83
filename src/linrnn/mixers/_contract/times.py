"""Times between steps, as calls are given them."""

from torch import Tensor

from linrnn.compute.arguments import check_device, check_numbers
from linrnn.compute.modes import eager
from linrnn.errors import ArgumentError, check_shape
from linrnn.mixers._contract.reach import LONGEST_TIME


def check_times(where: str, dt: object, x: Tensor) -> None:
    """Raise unless ``dt`` is a real number from 0 to 1e18 for each step of x (batch, [time, ] ...).

    Its values are looked at where they can be seen without waiting for a device.

    Raises:
        DTypeError, ShapeError, DeviceError, ArgumentError: it is not.
    """
    check_numbers(where, {"dt": dt}, real=True)
    assert isinstance(dt, Tensor)
    axes: dict[str, int | None] = {"batch": x.shape[0], "time": x.shape[1]}
    if x.ndim == 2:
        del axes["time"]
    check_shape(where, "dt", dt.shape, axes)
    check_device(where, "x", x.device, dt=dt)
    if dt.device.type == "cpu" and eager(dt):
        wrong = ~((dt >= 0) & (dt <= LONGEST_TIME) & dt.isfinite())
        if bool(wrong.any()):
            place = tuple(wrong.nonzero()[0].tolist())
            raise ArgumentError(
                f"{where}: dt must be at least 0 and at most {LONGEST_TIME:g}, got "
                f"{dt[place].item():.6g} at {place}. Sort the time stamps of a sequence, and pass "
                "their differences."
            )
