"""The linear map of all layers: `torch.nn.Linear` whose weights learn precisely under autocast."""

from typing import Any, ClassVar

from torch import Tensor, nn

from linrnn.ops.half_linear import half_linear


class Linear(nn.Linear):
    """`torch.nn.Linear`, whose weight has a precise gradient inside of `torch.autocast`.

    Arguments, parameters, initial values and outputs are those of `torch.nn.Linear`. Inside of
    autocast to bfloat16 PyTorch rounds the gradient of the weight, a sum over all steps, to
    bfloat16. On CPUs with matrix tiles (AMX) this layer sums it in float32, which is also faster.

    Example:
        >>> Linear(2, 3)
        Linear(in_features=2, out_features=3, bias=True)
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("weight",)
    #: For recorded steps: a call reads nothing of the layer but its weights.
    reads_weights_only: ClassVar[bool] = True

    def forward(self, input: Tensor) -> Tensor:
        """Map the last axis, whatever precedes it."""
        parameters: Any = self._parameters
        try:  # a module looks attributes up by a function of Python, which takes longer
            weight, bias = parameters["weight"], parameters["bias"]
        except KeyError:  # they are computed from others, as by `torch.nn.utils.parametrizations`
            weight, bias = self.weight, self.bias
        return half_linear(input, weight, bias)


def plain_linear(layer: object) -> bool:
    """Whether ``layer`` is a linear map and no more, as no adapter or other child class is.

    Example:
        >>> plain_linear(Linear(2, 3)), plain_linear(nn.Linear(2, 3)), plain_linear(nn.Identity())
        (True, True, False)
    """
    return type(layer) in (Linear, nn.Linear)
