"""The batched streaming Mimi codec: PCM frames to codes and back, many conversations at once, each at its own time.

Here: the two directions, their slots and masks, loading. Not here: resampling, loudness, file formats. The one rule: a call touches the
rows of its mask and no others; what a row yields depends on that row's own past only, bit for bit on a CPU (`graphs.ROW_BLOCK`; on CUDA
another batch size may round differently). A masked row costs nothing: the work is done on the gathered rows alone. Thread: tick.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from gateway.engine.codec.config import MimiConfig
from gateway.engine.codec.layers import Carry, DepthwiseUpsample
from gateway.engine.codec.quantizer import SplitQuantizer
from gateway.engine.codec.seanet import SeanetDecoder, SeanetEncoder, take_conv
from gateway.engine.codec.stream import Streams
from gateway.engine.codec.transformer import StreamingTransformer, Window, ring_capacity
from gateway.engine.codec.weights import TakeTensor, WeightFile, random_tensor
from gateway.engine.graphs import GraphedCall
from gateway.errors import ConfigError


class MimiEncoder:
    """PCM to codes; the weights are shared, the streams are an argument."""

    def __init__(self, take: TakeTensor, config: MimiConfig, quantizer: SplitQuantizer, window: Window, device: torch.device) -> None:
        self._quantizer = quantizer
        self._call_positions = config.call_positions
        self._seanet = SeanetEncoder(take, config)
        self._transformer = StreamingTransformer(take, "encoder", config, window, device)
        dim, stride = config.dimension, config.frame_positions
        prefix = "downsample.conv.conv.conv"
        self._downsample = take_conv(take, prefix, dim, dim, kernel=2 * stride, stride=stride, length=config.call_positions, bias=False)
        self._carry_widths = (*self._seanet.carry_widths, self._downsample.carry_width)
        self.carry_width = sum(self._carry_widths)

    def latents(self, streams: Streams, pcm: Tensor, rows: Tensor) -> Tensor:
        """Return the unquantised latents [n, frames, dimension] of one call, pcm [n, call_samples], of `rows`, and advance them."""
        start = streams.positions.index_select(0, rows)
        carry = Carry(streams.carried.index_select(0, rows), self._carry_widths)
        x = self._seanet(pcm.to(streams.carried.dtype)[..., None], carry)
        x = self._transformer(x, streams.ring, rows, start)
        x = self._downsample(x, carry, first=start == 0)  # alone among the convolutions, it starts with its first input repeated
        streams.carried.index_copy_(0, rows, carry.next())
        streams.positions.index_copy_(0, rows, start + self._call_positions)
        return x

    def __call__(self, streams: Streams, pcm: Tensor, rows: Tensor) -> Tensor:
        """Return codes int64 [n, num_codebooks] of one frame, pcm [n, S], of the slots `rows`, and advance them."""
        return self._quantizer.encode(self.latents(streams, pcm, rows)[:, 0])


class MimiDecoder:
    """Codes to PCM; the weights are shared, the streams are an argument."""

    def __init__(self, take: TakeTensor, config: MimiConfig, quantizer: SplitQuantizer, window: Window, device: torch.device) -> None:
        self._quantizer = quantizer
        self._call_positions = config.call_positions
        self._upsample = DepthwiseUpsample(take("upsample.convtr.convtr.convtr.weight", (config.dimension, 1, 2 * config.frame_positions)))
        self._transformer = StreamingTransformer(take, "decoder", config, window, device)
        self._seanet = SeanetDecoder(take, config)
        self._carry_widths = (self._upsample.carry_width, *self._seanet.carry_widths)
        self.carry_width = sum(self._carry_widths)

    def __call__(self, streams: Streams, codes: Tensor, rows: Tensor) -> Tensor:
        """Return PCM float32 [n, S] of one frame, codes int64 [n, num_codebooks], of the slots `rows`, and advance them."""
        return self.synthesise(streams, self._quantizer.decode(codes)[:, None], rows)

    def synthesise(self, streams: Streams, latents: Tensor, rows: Tensor) -> Tensor:
        """Return PCM float32 [n, call_samples] of one call, latents [n, frames, dimension], of the slots `rows`, and advance them."""
        start = streams.positions.index_select(0, rows)
        carry = Carry(streams.carried.index_select(0, rows), self._carry_widths)
        x = self._upsample(latents, carry)
        x = self._transformer(x, streams.ring, rows, start)
        x = self._seanet(x, carry)
        streams.carried.index_copy_(0, rows, carry.next())
        streams.positions.index_copy_(0, rows, start + self._call_positions)
        return x[..., 0].float()


class Mimi:
    """The codec of an engine: `num_slots` conversations, each with an encoder and a decoder stream.

    Args:
        take: where the tensors come from.
        config: the codec's sizes.
        num_slots: B.
        num_codebooks: codebooks in use; the others are not loaded.
        window: whose attention window to follow.
        device: where weights and streams live; results are returned there.
        dtype: float32, or float64 for numeric studies.

    Raises:
        ConfigError: a tensor is missing or misshapen, or the arguments do not fit the configuration.
    """

    def __init__(
        self,
        take: TakeTensor,
        config: MimiConfig,
        *,
        num_slots: int,
        num_codebooks: int = 8,
        window: Window = "personaplex",
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if not 2 <= num_codebooks <= config.num_codebooks:
            raise ConfigError(f"num_codebooks must be 2 to {config.num_codebooks} for this codec, not {num_codebooks}")
        if window not in ("moshi", "personaplex"):
            raise ConfigError(f"window must be moshi or personaplex, not {window!r}")
        if dtype not in (torch.float32, torch.float64):
            raise ConfigError(f"the codec runs in float32, not {dtype}")
        self.config = config
        self.num_slots = num_slots
        self.num_codebooks = num_codebooks
        self.device = torch.device(device)
        self._dtype = dtype
        self._window = window

        def take_here(name: str, shape: tuple[int, ...]) -> Tensor:
            return take(name, shape).to(self.device, dtype)

        quantizer = SplitQuantizer(take_here, config, num_codebooks)
        self.encoder = MimiEncoder(take_here, config, quantizer, window, self.device)
        self.decoder = MimiDecoder(take_here, config, quantizer, window, self.device)
        self.encoder_streams = self.new_streams(num_slots, self.encoder.carry_width)
        self.decoder_streams = self.new_streams(num_slots, self.decoder.carry_width)
        scratch = torch.full((1,), num_slots, device=self.device)
        silence = torch.zeros(1, config.frame_samples, device=self.device)
        zeros = torch.zeros(1, num_codebooks, dtype=torch.int64, device=self.device)
        pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None
        into, out = self.encoder_streams, self.decoder_streams
        self._encode = GraphedCall[Tensor](_on_tensors(self.encoder), (silence, scratch), state=into.tensors, pool=pool, traced=True)
        self._decode = GraphedCall[Tensor](_on_tensors(self.decoder), (zeros, scratch), state=out.tensors, pool=pool, traced=True)

    def new_streams(self, num_slots: int, carry_width: int) -> Streams:
        """Allocate fresh streams for `self.encoder` or `self.decoder`."""
        return Streams.allocate(
            self.config,
            num_slots=num_slots,
            carry_width=carry_width,
            capacity=ring_capacity(self.config, self._window),
            device=self.device,
            dtype=self._dtype,
        )

    # -- Public: slots and masks; masks are on the CPU, so that nothing waits for the device ---------------------------------------------

    def encode(self, pcm: Tensor, exec_mask: Tensor) -> Tensor:
        """Encode one frame of every row in `exec_mask`; the other rows are untouched.

        Args:
            pcm: float32 [B, S].
            exec_mask: bool [B], on the CPU.

        Returns:
            int64 [B, num_codebooks] on the codec's device; zeros in the other rows.
        """
        out = torch.zeros(self.num_slots, self.num_codebooks, dtype=torch.int64, device=self.device)
        return self._masked(self.encode_rows, pcm, exec_mask, out)

    def decode(self, codes: Tensor, exec_mask: Tensor) -> Tensor:
        """Decode one frame of every row in `exec_mask`; the other rows are untouched.

        Args:
            codes: int64 [B, num_codebooks].
            exec_mask: bool [B], on the CPU.

        Returns:
            float32 [B, S] on the codec's device; zeros in the other rows.

        Raises:
            ValueError: on a CPU, a code outside its codebook. On CUDA, where looking would mean to wait, it is clamped instead:
                an index out of range would take the device, and with it every conversation, down.
        """
        out = torch.zeros(self.num_slots, self.config.frame_samples, device=self.device)
        return self._masked(self.decode_rows, codes, exec_mask, out)

    def encode_rows(self, pcm: Tensor, rows: Tensor) -> Tensor:
        """As `encode`, for pcm float32 [n, S] of the slots `rows` (int64 [n], distinct), both on the codec's device."""
        return self._encode(pcm, rows)

    def decode_rows(self, codes: Tensor, rows: Tensor) -> Tensor:
        """As `decode`, for codes int64 [n, num_codebooks] of the slots `rows` (int64 [n], distinct), both on the codec's device."""
        if codes.is_cpu and codes.numel() and not 0 <= int(codes.min()) <= int(codes.max()) < self.config.codebook_size:
            raise ValueError(f"codes must be 0 to {self.config.codebook_size - 1}")
        return self._decode(codes, rows)

    @torch.inference_mode()
    def reset(self, reset_mask: Tensor) -> None:
        """Make both streams of every row in `reset_mask` (bool [B], on the CPU) fresh."""
        rows = reset_mask.nonzero()[:, 0].to(self.device)
        self.encoder_streams.reset(rows)
        self.decoder_streams.reset(rows)

    def warm_up(self, buckets: Sequence[int]) -> None:
        """Capture everything for these batch sizes, on the scratch slot; the largest must reach `num_slots` on CUDA."""
        self._encode.warm_up(buckets)
        self._decode.warm_up(buckets)

    @torch.inference_mode()
    def encode_offline(self, pcm: Tensor) -> Tensor:
        """Encode a whole recording, float32 [N], from a fresh stream of its own, the last frame padded with zeros.

        Live slots are not touched. Not captured: call it while loading, not between ticks. Thread: any, while no graph is being captured.

        Returns:
            int64 [T, num_codebooks] on the CPU.
        """
        streams = self.new_streams(1, self.encoder.carry_width)
        row = torch.zeros(1, dtype=torch.int64, device=self.device)
        padding = -pcm.shape[0] % self.config.frame_samples
        frames = torch.nn.functional.pad(pcm, (0, padding)).view(-1, 1, self.config.frame_samples).to(self.device)
        codes = [self.encoder(streams, frame, row) for frame in frames]
        return torch.cat(codes).cpu() if codes else torch.zeros(0, self.num_codebooks, dtype=torch.int64)

    # -- Private -------------------------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _masked(self, run: Callable[[Tensor, Tensor], Tensor], values: Tensor, exec_mask: Tensor, out: Tensor) -> Tensor:
        assert exec_mask.shape == values.shape[:1] == (self.num_slots,), (exec_mask.shape, values.shape)
        rows = exec_mask.nonzero()[:, 0]
        if len(rows):
            here = rows.to(self.device, non_blocking=True)
            chosen = values.index_select(0, rows if values.is_cpu else here).to(self.device)
            out.index_copy_(0, here, run(chosen, here))
        return out


def _on_tensors(direction: Callable[[Streams, Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """An encoder or decoder as a function of tensors only: its streams' one by one, values, rows."""
    return lambda carried, ring, positions, values, rows: direction(Streams(carried, ring, positions), values, rows)


def load_mimi(
    path: Path,
    config: MimiConfig | None,
    *,
    num_slots: int,
    num_codebooks: int = 8,
    window: Window,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Mimi:
    """Load a codec file (fp32 or fp16, either spelling of its keys); `config` None is the official full size.

    Raises:
        ConfigError: the file cannot be read, or a tensor in it is missing or misshapen; the message names both.
    """
    file = WeightFile(path)
    return Mimi(
        file.take, config or MimiConfig(), num_slots=num_slots, num_codebooks=num_codebooks, window=window, device=device, dtype=dtype
    )


def random_mimi(config: MimiConfig, *, num_slots: int, num_codebooks: int = 8, window: Window, device: torch.device | str = "cpu") -> Mimi:
    """Return a codec with random weights, for benchmarks without a checkpoint."""
    return Mimi(random_tensor, config, num_slots=num_slots, num_codebooks=num_codebooks, window=window, device=device)
