"""The two primitives of the codec: a matrix product whose rows do not depend on each other, and a causal convolution made of it.

Everything runs channels-last, [n, T, C], so that a window of k positions is one contiguous run of k * C numbers: a convolution is a copy of
windows and one matrix product, and a transposed convolution (kernel twice the stride) is a convolution over two inputs that yields `stride`
outputs at once. Measured on two EPYC cores with the tiny codec, that is as fast as torch's convolutions for the large layers (the longest
are left to them) and up to six times as fast for the deep ones. The one rule: nothing here reads a value from a tensor in Python, so that
CUDA graphs can hold it.
Thread: tick.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from gateway.engine.graphs import whole_blocks

# MKL is 3.5 times as slow for 8 columns as for 16 (measured: 1920 x 48 times 48 x 8, one thread).
MIN_COLUMNS = 16

# On a CPU, a convolution with so many output positions a frame is left to torch's own, which needs no copy of the windows: 16 rows of the
# tiny codec's five took 2.8 ms instead of 3.8 (one EPYC core). Shorter ones were no faster, and a row's result depended on the batch.
LONG_POSITIONS = 480

LOG2_E = math.log2(math.e)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x [..., K] times weight [K, N], plus bias [N]. On a CPU the rows of x must be whole blocks (`graphs.whole_blocks`)."""
    flat = x.reshape(-1, weight.shape[0])
    y = torch.mm(flat, weight) if bias is None else torch.addmm(bias, flat, weight)
    return y.view(*x.shape[:-1], weight.shape[1])


def elu(x: Tensor, out: Tensor) -> Tensor:
    """Write the ELU of x into `out` (of the same shape, may be x itself) and return it; for a CPU.

    torch's ELU computes expm1, which took 2.8 ns a value where these passes take 1.3 (one EPYC core); the difference is below 2e-7.
    """
    power = (x * LOG2_E).clamp_max_(0).exp2_().sub_(1)
    return torch.maximum(x, power, out=out)


def _in_place(x: Tensor) -> bool:
    """Whether `elu` may be used: it is for a CPU, and what it overwrites no gradient can pass."""
    return x.is_cpu and not torch.is_grad_enabled()


class Carry:
    """What the convolutions of one step keep from the step before: read in layer order, written in the same order.

    Args:
        past: [n, width], the rows' carried values; zeros at stream start.
        widths: of each convolution's part, in that order.
    """

    def __init__(self, past: Tensor, widths: Sequence[int]) -> None:
        self._past = iter(torch.split(past, list(widths), dim=1))
        self._next: list[Tensor] = []

    def extend(self, x: Tensor, length: int, *, first: Tensor | None = None, activate: bool = False) -> Tensor:
        """Put the last `length` positions of the step before in front of x [n, T, C].

        Args:
            x: [n, T, C].
            length: positions, 1 or more.
            first: bool [n] or None; where it is set, x's first position stands in for them.
            activate: whether x goes through ELU on its way.
        """
        n, positions, channels = x.shape
        past = next(self._past).view(n, length, channels)
        if first is not None:
            past = torch.where(first.view(n, 1, 1), x[:, :1], past)
        if activate and _in_place(x):
            joined = x.new_empty(n, length + positions, channels)
            joined.narrow(1, 0, length).copy_(past)
            elu(x, joined.narrow(1, length, positions))
        else:
            joined = torch.cat((past, functional.elu(x) if activate else x), dim=1)
        self._next.append(joined.narrow(1, positions, length).flatten(1))
        return joined

    def next(self) -> Tensor:
        """Return [n, width] to carry into the next step."""
        assert next(self._past, None) is None, "a layer did not take its part"
        return torch.cat(self._next, dim=1)


class CausalConv:
    """Causal convolution over [n, T, inputs]; its left context is kernel - stride positions.

    Args:
        weight: [kernel * inputs, outputs], position-major.
        bias: [outputs] or None.
        kernel, stride: positions.
        length: T of every call, a multiple of stride.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, *, kernel: int, stride: int = 1, length: int) -> None:
        inputs, outputs = weight.shape[0] // kernel, weight.shape[1]
        self.carry_width = (kernel - stride) * inputs
        self._context = kernel - stride
        self._outputs = outputs
        group = 1  # outputs positions made by one row of the product
        while kernel > 1 and group * outputs < MIN_COLUMNS and length // stride % (2 * group) == 0:
            group *= 2
        self._shift = group * stride  # input positions from one window to the next
        self._window = self._shift + self._context
        self._rows = length // self._shift  # of the product, for one row of x
        self._weight = torch.zeros(self._window, inputs, group, outputs, dtype=weight.dtype, device=weight.device)
        for i in range(group):
            self._weight[i * stride : i * stride + kernel, :, i] = weight.view(kernel, inputs, outputs)
        self._weight = self._weight.view(self._window * inputs, group * outputs)
        self._bias = None if bias is None else bias.repeat(group)
        self._stride = stride
        self._filter: Tensor | None = None  # [outputs, inputs, 1, kernel] of torch's own convolution, where that is faster
        if weight.is_cpu and kernel > 1 and group == 1 and length // stride >= LONG_POSITIONS:
            self._filter = weight.view(1, kernel, inputs, outputs).permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)

    def __call__(self, x: Tensor, carry: Carry, *, first: Tensor | None = None, activate: bool = False) -> Tensor:
        """Return [n, T / stride, outputs]; `first` and `activate` as in `Carry.extend`. Without a left context, ELU is done on x itself."""
        if self._context:
            x = carry.extend(x, self._context, first=first, activate=activate)
        elif activate:
            x = elu(x, x) if _in_place(x) else functional.elu_(x)
        if self._filter is not None:
            image = x.unsqueeze(1).permute(0, 3, 1, 2)  # [n, inputs, 1, T], channels last as x lies
            return functional.conv2d(image, self._filter, self._bias, (1, self._stride)).permute(0, 2, 3, 1).flatten(1, 2)
        n, _, channels = x.shape
        if self._window > 1:
            x = x.flatten(1).unfold(1, self._window * channels, self._shift * channels)  # [n, rows, window * C], a view
        y = linear(whole_blocks(x, self._rows), self._weight, self._bias)
        return y[:n].view(n, -1, self._outputs)


class TransposedConv:
    """Causal transposed convolution over [n, T, inputs], kernel twice the stride, yielding [n, T * stride, outputs].

    Output block t is x[t] through the first half of the kernel plus x[t - 1] through the second half, so carrying one input position
    replaces the overlap of the outputs, and the bias comes in once by itself.

    Args:
        weight: [inputs, outputs, 2 * stride], as stored.
        bias: [outputs].
        length: T of every call.
    """

    def __init__(self, weight: Tensor, bias: Tensor, length: int) -> None:
        inputs, outputs, kernel = weight.shape
        now, later = weight.permute(0, 2, 1).chunk(2, dim=1)  # each [inputs, stride, outputs]
        self._outputs = outputs
        self._conv = CausalConv(torch.cat((later, now)).flatten(1), bias.repeat(kernel // 2), kernel=2, length=length)
        self.carry_width = inputs

    def __call__(self, x: Tensor, carry: Carry) -> Tensor:
        """Return [n, T * stride, outputs] of the ELU of x."""
        return self._conv(x, carry, activate=True).reshape(x.shape[0], -1, self._outputs)


class DepthwiseUpsample:
    """Transposed convolution with one kernel per channel, no bias: [n, T, C] to [n, T * stride, C].

    Args:
        weight: [C, 1, 2 * stride], as stored.
    """

    def __init__(self, weight: Tensor) -> None:
        stride = weight.shape[2] // 2
        taps = weight[:, 0].t().contiguous()  # [2 * stride, C]
        self._now, self._later = taps[:stride], taps[stride:]
        self.carry_width = weight.shape[0]

    def __call__(self, x: Tensor, carry: Carry) -> Tensor:
        """Return [n, T * stride, C]."""
        joined = carry.extend(x, 1).unsqueeze(2)  # [n, 1 + T, 1, C]
        return (joined[:, 1:] * self._now + joined[:, :-1] * self._later).flatten(1, 2)
