"""What a codec is judged by: spectra at several scales, and discriminators over spectrograms.

Thread: any.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gateway.training.corpus import SAMPLE_RATE

# Window length -> mel bands.
SCALES = {64: 6, 128: 12, 256: 24, 512: 48, 1024: 64, 2048: 80}
FLOOR = 1e-3  # inside the logarithm: a clamp there would have no gradient in silence
DISCRIMINATOR_SCALES = (1024, 512, 256, 128)


class SpectralLoss(nn.Module):
    """Mean over scales of |difference of log10 mel| and half the spectral convergence; float32 [B, N] twice in, scalar out."""

    def __init__(self) -> None:
        super().__init__()
        for size, bands in SCALES.items():
            self.register_buffer(f"window_{size}", torch.hann_window(size), persistent=False)
            self.register_buffer(f"mel_{size}", mel_filters(size, bands), persistent=False)

    def forward(self, made: Tensor, wanted: Tensor) -> Tensor:
        total = made.new_zeros(())
        for size in SCALES:
            window, mel = self.get_buffer(f"window_{size}"), self.get_buffer(f"mel_{size}")
            one, other = (_magnitude(x, size, window) for x in (made, wanted))
            logs = (torch.log10(mel @ one + FLOOR) - torch.log10(mel @ other + FLOOR)).abs().mean()
            total = total + logs + 0.5 * (one - other).norm() / (other.norm() + 1.0)
        return total / len(SCALES)


def _magnitude(x: Tensor, size: int, window: Tensor) -> Tensor:
    spectrum = torch.stft(x, size, size // 4, window=window, normalized=True, return_complex=True)
    return (spectrum.real.square() + spectrum.imag.square() + 1e-9).sqrt()


def mel_filters(size: int, bands: int) -> Tensor:
    """Triangular filters [bands, size // 2 + 1] between 0 and half the rate, evenly spaced in mel (HTK's formula)."""
    top = 2595 * torch.log10(torch.tensor(1 + SAMPLE_RATE / 2 / 700))
    edges = 700 * (10 ** (torch.linspace(0, float(top), bands + 2) / 2595) - 1)
    hertz = torch.linspace(0, SAMPLE_RATE / 2, size // 2 + 1)
    rising = (hertz - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - hertz) / (edges[2:] - edges[1:-1])[:, None]
    filters = torch.minimum(rising, falling).clamp(min=0)
    empty = filters.sum(dim=1) == 0  # narrower than a bin: take the nearest one
    filters[empty, (edges[1:-1] / (SAMPLE_RATE / 2) * (size // 2)).round().long()[empty]] = 1
    return filters / filters.sum(dim=1, keepdim=True)


class _SpectrogramDiscriminator(nn.Module):
    def __init__(self, size: int, channels: int = 24) -> None:
        super().__init__()
        self._size = size
        self.register_buffer("window", torch.hann_window(size), persistent=False)
        strides = ((1, 1), (1, 2), (1, 2), (1, 2))
        sizes = [(2, channels), *[(channels, channels)] * 3]
        self.layers = nn.ModuleList(
            nn.utils.parametrizations.weight_norm(nn.Conv2d(*io, (3, 7), stride, (1, 3))) for io, stride in zip(sizes, strides, strict=True)
        )
        self.last = nn.utils.parametrizations.weight_norm(nn.Conv2d(channels, 1, 3, padding=1))

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        spectrum = torch.stft(x, self._size, self._size // 4, window=self.get_buffer("window"), normalized=True, return_complex=True)
        x = torch.view_as_real(spectrum).permute(0, 3, 2, 1)  # [B, 2, time, frequency]
        features = []
        for layer in self.layers:
            x = F.leaky_relu(layer(x), 0.2)
            features.append(x)
        return self.last(x), features


class Discriminators(nn.Module):
    """One over each scale; hinge losses and feature matching."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(_SpectrogramDiscriminator(size) for size in DISCRIMINATOR_SCALES)

    def own_loss(self, made: Tensor, wanted: Tensor) -> Tensor:
        """What the discriminators minimise."""
        return sum(
            (F.relu(1 - part(wanted)[0]).mean() + F.relu(1 + part(made.detach())[0]).mean() for part in self.parts), made.new_zeros(())
        ) / len(self.parts)

    def codec_loss(self, made: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """What the codec minimises: to be taken for real, and the distance of the features."""
        real, matching = made.new_zeros(()), made.new_zeros(())
        for part in self.parts:
            score, features = part(made)
            with torch.no_grad():
                _, targets = part(wanted)
            real = real - score.mean()
            distances = [(one - other).abs().mean() / (other.abs().mean() + 1e-6) for one, other in zip(features, targets, strict=True)]
            matching = matching + torch.stack(distances).mean()
        return real / len(self.parts), matching / len(self.parts)
