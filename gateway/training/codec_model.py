"""The codec as something to train: its tensors as leaves, and the engine's own modules built over them for each forward pass.

Here: parameters, straight-through quantisation, moving codebooks, whole recordings to codes. Not here: losses and the loop. The one rule:
the forward pass is `gateway.engine.codec`; what is learned here is what the engine will run. Thread: any, one at a time.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
from torch import Tensor

from gateway.engine.codec.config import MimiConfig
from gateway.engine.codec.mimi import MimiDecoder, MimiEncoder
from gateway.engine.codec.quantizer import SplitQuantizer
from gateway.engine.codec.stream import Streams
from gateway.engine.codec.transformer import Window, ring_capacity
from gateway.engine.codec.weights import TakeTensor

WINDOW: Window = "moshi"  # the bundled model's family (its config.json)
DECAY = 0.99  # of the moving averages of the codebooks; source: van den Oord et al. 2017, appendix A.1
DEAD = 0.5  # an entry used less often than this a step, on average, moves to a vector of the batch
ENCODE_FRAMES = 80  # of one call at most when whole recordings are encoded; the memory of a call grows with it


@dataclasses.dataclass(frozen=True, slots=True)
class Quantized:
    """What the quantiser made of latents [n, dim]."""

    codes: Tensor  # int64 [n, K]
    latents: Tensor  # [n, dim], decoded, with the gradient passed straight through
    semantic: Tensor  # [n, width], the first codebook's vectors, gradient straight through
    commitment: Tensor  # scalar: mean squared distance between vectors and their entries
    residuals: Tensor  # [K, n, width], what each codebook was asked to quantise


class TrainedMimi:
    """A codec whose tensors are trained.

    Args:
        config: its sizes; `frames` is ignored.
        take: the initial values.
        device: where it is trained.
    """

    def __init__(self, config: MimiConfig, take: TakeTensor, device: torch.device) -> None:
        self.config, self.device = config, device
        self.tensors: dict[str, Tensor] = {}

        def keep(name: str, shape: tuple[int, ...]) -> Tensor:
            tensor = take(name, shape).to(device)
            self.tensors[name] = tensor.requires_grad_("_codebook." not in name)
            return tensor

        with torch.no_grad():
            self._parts(1, keep)

    @property
    def parameters(self) -> dict[str, Tensor]:
        """What gradients move: all but the codebooks."""
        return {name: tensor for name, tensor in self.tensors.items() if tensor.requires_grad}

    def encode(self, pcm: Tensor) -> Tensor:
        """Return latents [B, T, dim] of recordings [B, T * S] that begin with a fresh stream."""
        encoder, _, _ = self._parts(pcm.shape[1] // self.config.frame_samples)
        return encoder.latents(self._streams(encoder, len(pcm), pcm.shape[1] // self.config.frame_samples), pcm, self._rows(pcm))

    def decode(self, latents: Tensor) -> Tensor:
        """Return recordings [B, T * S] of latents [B, T, dim]."""
        _, decoder, _ = self._parts(latents.shape[1])
        return decoder.synthesise(self._streams(decoder, len(latents), latents.shape[1]), latents, self._rows(latents))

    def quantize(self, latents: Tensor) -> Quantized:
        """Quantise latents [n, dim]."""
        with torch.no_grad():
            codes = self._quantizer(self._take).encode(latents)
        books = self.codebooks()
        inputs = [self.tensors[f"quantizer.{part}.input_proj.weight"][:, :, 0] for part in ("rvq_first", "rvq_rest")]
        outputs = [self.tensors[f"quantizer.{part}.output_proj.weight"][:, :, 0] for part in ("rvq_first", "rvq_rest")]
        entries = torch.stack([book[codes[:, k]] for k, book in enumerate(books)])  # [K, n, width]
        semantic, acoustic = (latents @ weight.t() for weight in inputs)
        chosen = entries[0], entries[1:].sum(dim=0)
        passed = [x + (q - x).detach() for x, q in zip((semantic, acoustic), chosen, strict=True)]
        decoded = passed[0] @ outputs[0].t() + passed[1] @ outputs[1].t()
        commitment = (semantic - chosen[0]).square().mean() + (acoustic - chosen[1]).square().mean()
        before = torch.cat((torch.zeros_like(entries[:1]), entries[1:].cumsum(dim=0)[:-1]))
        residuals = torch.cat((semantic[None], acoustic - before)).detach()
        return Quantized(codes, decoded, passed[0], commitment, residuals)

    def codebooks(self) -> list[Tensor]:
        """Entries [size, width] of each codebook."""
        return [sums / usage.clamp(min=1e-5)[:, None] for usage, sums in self._averages()]

    @torch.no_grad()
    def move_codebooks(self, quantized: Quantized) -> int:
        """Move every entry towards the mean of what it stood for; return how many dead ones were replaced."""
        replaced = 0
        for k, (usage, sums) in enumerate(self._averages()):
            vectors, codes = quantized.residuals[k], quantized.codes[:, k]
            usage.mul_(DECAY).add_(torch.bincount(codes, minlength=len(usage)).to(usage), alpha=1 - DECAY)
            sums.mul_(DECAY).add_(torch.zeros_like(sums).index_add_(0, codes, vectors), alpha=1 - DECAY)
            dead = (usage < DEAD * len(vectors) / len(usage) / 16).nonzero()[:, 0]
            if len(dead):
                picked = torch.randint(len(vectors), (len(dead),), device=vectors.device)
                usage[dead] = len(vectors) / len(usage)
                sums[dead] = vectors[picked] * usage[dead, None]
                replaced += len(dead)
        return replaced

    @torch.no_grad()
    def encode_codes(self, pcm: Tensor) -> Tensor:
        """Return codes int64 [B, T, K] of recordings [B, T * S], exactly as a conversation would be encoded, but in long calls."""
        samples = self.config.frame_samples
        count = pcm.shape[1] // samples
        frames = -(-count // -(-count // ENCODE_FRAMES))  # of a call, so that the calls are about equal
        encoder, _, quantizer = self._parts(frames)
        streams = self._streams(encoder, len(pcm), frames)
        pcm = torch.nn.functional.pad(pcm[:, : count * samples], (0, -count % frames * samples))
        latents = [encoder.latents(streams, part, self._rows(pcm)) for part in torch.split(pcm, frames * samples, dim=1)]
        joined = torch.cat(latents, dim=1)[:, :count]
        return quantizer.encode(joined.flatten(0, 1)).view(len(pcm), count, -1)

    @torch.no_grad()
    def decode_codes(self, codes: Tensor) -> Tensor:
        """Return recordings [B, T * S] of codes int64 [B, T, K]."""
        return self.decode(self._quantizer(self._take).decode(codes.flatten(0, 1)).view(*codes.shape[:2], -1))

    def save(self, path: Path) -> None:
        """Write the official file in float16."""
        from safetensors.torch import save_file

        save_file({name: tensor.detach().half().cpu().contiguous() for name, tensor in self.tensors.items()}, path)

    def _averages(self) -> list[tuple[Tensor, Tensor]]:
        names = ["quantizer.rvq_first.vq.layers.0", *(f"quantizer.rvq_rest.vq.layers.{k}" for k in range(self.config.num_codebooks - 1))]
        return [(self.tensors[f"{n}._codebook.cluster_usage"], self.tensors[f"{n}._codebook.embedding_sum"]) for n in names]

    def _take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = self.tensors[name]
        assert tuple(tensor.shape) == shape, (name, tensor.shape, shape)
        return tensor

    def _quantizer(self, take: TakeTensor) -> SplitQuantizer:
        return SplitQuantizer(take, self.config, self.config.num_codebooks)

    def _parts(self, frames: int, take: TakeTensor | None = None) -> tuple[MimiEncoder, MimiDecoder, SplitQuantizer]:
        take, config = take or self._take, dataclasses.replace(self.config, frames=frames)
        quantizer = self._quantizer(take)
        encoder = MimiEncoder(take, config, quantizer, WINDOW, self.device)
        return encoder, MimiDecoder(take, config, quantizer, WINDOW, self.device), quantizer

    def _streams(self, part: MimiEncoder | MimiDecoder, rows: int, frames: int) -> Streams:
        config = dataclasses.replace(self.config, frames=frames)
        capacity = ring_capacity(config, WINDOW)
        return Streams.allocate(
            config, num_slots=rows, carry_width=part.carry_width, capacity=capacity, device=self.device, dtype=torch.float32
        )

    def _rows(self, x: Tensor) -> Tensor:
        return torch.arange(len(x), device=self.device)
