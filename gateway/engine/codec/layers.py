"""The two primitives of the codec: a matrix product whose rows do not depend on each other, and a causal convolution made of it.

Everything runs channels-last, [n, T, C], so that a window of k positions is one contiguous run of k * C numbers: a convolution is a copy of
windows and one matrix product, and a transposed convolution (kernel twice the stride) is a convolution over two inputs that yields `stride`
outputs at once. Measured on two EPYC cores with the tiny codec, that is as fast as torch's convolutions for the large layers and up to six
times as fast for the deep ones. The one rule: nothing here reads a value from a tensor in Python, so that CUDA graphs can hold it.
Thread: tick.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

# MKL multiplies rows in blocks of 4; left-over rows go through kernels that sum in another order, and then a row's result would
# depend on how many neighbours it has. Padded to whole blocks, each row comes out bit for bit the same in any batch (measured for
# 1 and 2 threads, AVX-512). Four rows cost what two cost.
ROW_BLOCK = 4


# MKL is 3.5 times as slow for 8 columns as for 16 (measured: 1920 x 48 times 48 x 8, one thread).
MIN_COLUMNS = 16


def padding_rows(count: int, positions: int, device: torch.device) -> int:
    """How many rows of `positions` positions make `count` of them fill whole blocks; none on a GPU."""
    block = ROW_BLOCK // math.gcd(ROW_BLOCK, positions)
    return -count % block if device.type == "cpu" else 0


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x [..., K] times weight [K, N], plus bias [N]."""
    flat = x.reshape(-1, weight.shape[0])
    count = flat.shape[0]
    if padding := padding_rows(count, 1, flat.device):
        flat = functional.pad(flat, (0, 0, 0, padding))
    y = torch.mm(flat, weight) if bias is None else torch.addmm(bias, flat, weight)
    return y[:count].view(*x.shape[:-1], weight.shape[1])


class Carry:
    """What the convolutions of one step keep from the step before: read in layer order, written in the same order.

    Args:
        past: [n, width], the rows' carried values; zeros at stream start.
    """

    def __init__(self, past: Tensor) -> None:
        self._past = past
        self._cursor = 0
        self._next: list[Tensor] = []

    def extend(self, x: Tensor, length: int, first: Tensor | None = None) -> Tensor:
        """Put the last `length` positions of the step before in front of x [n, T, C].

        Where `first` (bool [n]) is set, x's first position stands in for them.
        """
        if length == 0:
            return x
        n, _, channels = x.shape
        end = self._cursor + length * channels
        past = self._past[:, self._cursor : end].view(n, length, channels)
        self._cursor = end
        if first is not None:
            past = torch.where(first.view(n, 1, 1), x[:, :1], past)
        joined = torch.cat((past, x), dim=1)
        self._next.append(joined[:, -length:].flatten(1))
        return joined

    def next(self) -> Tensor:
        """Return [n, width] to carry into the next step."""
        assert self._cursor == self._past.shape[1], "a layer did not take its part"
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
        while kernel > 1 and 1 < group * outputs < MIN_COLUMNS and length // stride % (2 * group) == 0:
            group *= 2
        self._shift = group * stride  # input positions from one window to the next
        self._window = self._shift + self._context
        self._weight = torch.zeros(self._window, inputs, group, outputs, dtype=weight.dtype, device=weight.device)
        for i in range(group):
            self._weight[i * stride : i * stride + kernel, :, i] = weight.view(kernel, inputs, outputs)
        self._weight = self._weight.view(self._window * inputs, group * outputs)
        self._bias = None if bias is None else bias.repeat(group)

    def __call__(self, x: Tensor, carry: Carry, first: Tensor | None = None) -> Tensor:
        """Return [n, T / stride, outputs]."""
        x = carry.extend(x, self._context, first)
        if self._window > 1:
            n, length, channels = x.shape
            shape = (n, (length - self._context) // self._shift, self._window * channels)
            x = x.as_strided(shape, (length * channels, self._shift * channels, 1))
        y = linear(x, self._weight, self._bias)
        return y.view(y.shape[0], -1, self._outputs)


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
        """Return [n, T * stride, outputs]."""
        return self._conv(x, carry).reshape(x.shape[0], -1, self._outputs)


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
