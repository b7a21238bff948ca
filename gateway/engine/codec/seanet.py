"""SEANet, the convolutional ends of the codec: waveform to 25 Hz features, and back.

Here: the stack of layers under its official names. Not here: transformers, resampling, state. ELU stands before every convolution but the
first, and what a convolution carries is its input, after the ELU. Thread: tick.
"""

from __future__ import annotations

from torch import Tensor

from gateway.engine.codec.config import MimiConfig
from gateway.engine.codec.layers import Carry, CausalConv, TransposedConv
from gateway.engine.codec.weights import TakeTensor


def take_conv(
    take: TakeTensor, prefix: str, inputs: int, outputs: int, *, kernel: int, stride: int = 1, length: int, bias: bool = True
) -> CausalConv:
    """Load one convolution stored as [outputs, inputs, kernel]; `length` is the number of input positions of a frame.

    Raises:
        ConfigError: its tensors are missing or misshapen.
    """
    weight = take(f"{prefix}.weight", (outputs, inputs, kernel)).permute(2, 1, 0).reshape(kernel * inputs, outputs)
    return CausalConv(weight, take(f"{prefix}.bias", (outputs,)) if bias else None, kernel=kernel, stride=stride, length=length)


class _Residual:
    def __init__(self, take: TakeTensor, prefix: str, channels: int, length: int, config: MimiConfig) -> None:
        hidden = channels // config.compress
        self._wide = take_conv(take, f"{prefix}.block.1.conv.conv", channels, hidden, kernel=config.residual_kernel_size, length=length)
        self._point = take_conv(take, f"{prefix}.block.3.conv.conv", hidden, channels, kernel=1, length=length)
        self.carry_widths = (self._wide.carry_width,)

    def __call__(self, x: Tensor, carry: Carry) -> Tensor:
        hidden = self._wide(x, carry, activate=True)
        return self._point(hidden, carry, activate=True).add_(x)


class SeanetEncoder:
    """[n, samples, 1] to [n, positions, dimension]."""

    def __init__(self, take: TakeTensor, config: MimiConfig) -> None:
        channels, length = config.num_filters, config.call_samples
        self._first = take_conv(take, "encoder.model.0.conv.conv", 1, channels, kernel=config.kernel_size, length=length)
        self._stages: list[tuple[_Residual, CausalConv]] = []
        for i, stride in enumerate(reversed(config.ratios)):
            residual = _Residual(take, f"encoder.model.{3 * i + 1}", channels, length, config)
            prefix = f"encoder.model.{3 * i + 3}.conv.conv"
            conv = take_conv(take, prefix, channels, 2 * channels, kernel=2 * stride, stride=stride, length=length)
            self._stages.append((residual, conv))
            channels, length = channels * 2, length // stride
        prefix = f"encoder.model.{3 * len(config.ratios) + 2}.conv.conv"
        self._last = take_conv(take, prefix, channels, config.dimension, kernel=config.last_kernel_size, length=length)
        stages = [width for residual, conv in self._stages for width in (*residual.carry_widths, conv.carry_width)]
        self.carry_widths = (self._first.carry_width, *stages, self._last.carry_width)

    def __call__(self, x: Tensor, carry: Carry) -> Tensor:
        """Encode whole frames."""
        x = self._first(x, carry)
        for residual, conv in self._stages:
            x = conv(residual(x, carry), carry, activate=True)
        return self._last(x, carry, activate=True)


class SeanetDecoder:
    """[n, positions, dimension] to [n, samples, 1]; no final activation, so values may leave -1..1."""

    def __init__(self, take: TakeTensor, config: MimiConfig) -> None:
        channels, length = config.num_filters << len(config.ratios), config.call_positions
        self._first = take_conv(take, "decoder.model.0.conv.conv", config.dimension, channels, kernel=config.kernel_size, length=length)
        self._stages: list[tuple[TransposedConv, _Residual]] = []
        for i, stride in enumerate(config.ratios):
            prefix = f"decoder.model.{3 * i + 2}.convtr.convtr"
            weight = take(f"{prefix}.weight", (channels, channels // 2, 2 * stride))
            conv = TransposedConv(weight, take(f"{prefix}.bias", (channels // 2,)), length)
            channels, length = channels // 2, length * stride
            self._stages.append((conv, _Residual(take, f"decoder.model.{3 * i + 3}", channels, length, config)))
        prefix = f"decoder.model.{3 * len(config.ratios) + 2}.conv.conv"
        self._last = take_conv(take, prefix, channels, 1, kernel=config.last_kernel_size, length=length)
        stages = [width for conv, residual in self._stages for width in (conv.carry_width, *residual.carry_widths)]
        self.carry_widths = (self._first.carry_width, *stages, self._last.carry_width)

    def __call__(self, x: Tensor, carry: Carry) -> Tensor:
        """Decode whole frames."""
        x = self._first(x, carry)
        for conv, residual in self._stages:
            x = residual(conv(x, carry), carry)
        return self._last(x, carry, activate=True)
