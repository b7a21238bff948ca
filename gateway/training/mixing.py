"""Conversations as sound: placements to two channels, tracks to frames, and what rooms, microphones and networks do to a user's voice.

Here: everything that runs once a batch on the training device. Not here: what is said. The one rule: no loop over samples, clips or rows;
a batch is a few tens of tensor operations. Thread: any.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gateway.training.bank import TRACK_SAMPLES, SpeechBank
from gateway.training.corpus import SAMPLE_RATE
from gateway.training.dialogues import FRAME, Dialogue

SUBFRAMES = 4  # phone labels of a frame, 20 ms each
FADE_SAMPLES = 240  # 10 ms at both ends of a placement, so that a cut does not click


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """B conversations of T frames on the training device."""

    user: Tensor  # float32 [B, T * FRAME], clean
    assistant: Tensor  # float32 [B, T * FRAME]
    phones: Tensor  # int64 [B, 2, T, SUBFRAMES], of user and assistant
    words: Tensor  # int64 [B, T], of the user


def render(bank: SpeechBank, dialogues: Sequence[Dialogue], frames: int) -> Batch:
    """Mix a batch."""
    device = bank.samples.device
    rows = [(row, p) for row, dialogue in enumerate(dialogues) for p in dialogue.placements]
    table = [(2 * row + (not p.is_user), p.at, p.start, int(p.length / p.rate), p.rate, p.gain) for row, p in rows]
    both = torch.zeros(2 * len(dialogues), frames * FRAME, device=device)
    phones = torch.zeros(2 * len(dialogues), frames * SUBFRAMES, dtype=torch.int64, device=device)
    words = torch.zeros(2 * len(dialogues), frames, dtype=torch.int64, device=device)
    if table:
        values = torch.tensor(table, dtype=torch.float64).to(device)
        channel, at, start, length = (values[:, i].long() for i in range(4))
        rate, gain = values[:, 4], values[:, 5].float()
        _add_samples(both, bank.samples, channel, at, start, length, rate, gain)
        _set_track(phones, bank.phones, FRAME // SUBFRAMES, channel, at, start, length, rate)
        _set_track(words, bank.words, FRAME, channel, at, start, length, rate)
    user, assistant = both.view(len(dialogues), 2, -1).unbind(1)
    return Batch(user, assistant, phones.view(len(dialogues), 2, frames, SUBFRAMES), words[::2])


def spread(length: Tensor) -> tuple[Tensor, Tensor]:
    """For n runs of the given lengths: the run of each element, and its place in the run."""
    run = torch.repeat_interleave(length)
    return run, torch.arange(len(run), device=length.device) - (length.cumsum(0) - length)[run]


def _add_samples(
    target: Tensor, samples: Tensor, channel: Tensor, at: Tensor, start: Tensor, length: Tensor, rate: Tensor, gain: Tensor
) -> None:
    run, place = spread(length)
    source = place * rate[run]
    whole = source.long()
    first = start[run] + whole
    fraction = (source - whole).float()
    low, high = samples[first].float(), samples[(first + 1).clamp(max=len(samples) - 1)].float()
    ends = torch.minimum(place, length[run] - 1 - place).clamp(max=FADE_SAMPLES) / FADE_SAMPLES
    value = torch.lerp(low, high, fraction) * (gain[run] / 32768) * ends
    target.view(-1).index_add_(0, channel[run] * target.shape[1] + at[run] + place, value)


def _set_track(
    target: Tensor, track: Tensor, step: int, channel: Tensor, at: Tensor, start: Tensor, length: Tensor, rate: Tensor
) -> None:
    """Fill target [rows, T]: its element j stands for the middle of samples [j * step, (j + 1) * step)."""
    first = (at - step // 2 + step - 1).clamp(min=0) // step  # first element whose middle is not before `at`
    count = ((at + length - step // 2 + step - 1) // step).clamp(max=target.shape[1]) - first
    run, place = spread(count.clamp(min=0))
    element = first[run] + place
    source = start[run] + ((element * step + step // 2 - at[run]) * rate[run]).long()
    target.view(-1).index_copy_(0, channel[run] * target.shape[1] + element, track[source // TRACK_SAMPLES].long())


# -- What happens to a user's voice --------------------------------------------------------------------------------------------------------


def vary_level(user: Tensor) -> Tensor:
    """Return user [B, N] louder or softer, each row by its own amount."""
    level = torch.where(_chance(user, 0.8), _between(user, -9.0, 5.0), _between(user, -18.0, 9.0))
    return user * 10 ** (level / 20)


def spoil(user: Tensor, assistant: Tensor) -> Tensor:
    """Return user [B, N] as a microphone would hand it over: room, band, noise, echo of the assistant, each for some rows."""
    rows, device = len(user), user.device

    def chance(share: float) -> Tensor:
        return _chance(user, share)

    def between(low: float, high: float) -> Tensor:
        return _between(user, low, high)

    echo = assistant.roll(int(SAMPLE_RATE * (0.05 + 0.15 * float(torch.rand(())))), dims=1)
    x = user + torch.where(chance(0.15), 10 ** (between(-40.0, -18.0) / 20), 0.0) * echo
    x = _filtered(x, chance(0.35), chance(0.35), between(3400.0, 9000.0), between(0.02, 0.25), between(0.05, 0.5))
    others = user.roll(1, dims=0) + user.roll(2, dims=0) + user.roll(3, dims=0)
    x = x + torch.where(chance(0.15), 10 ** (between(-30.0, -15.0) / 20), 0.0) * others  # babble: the others of the batch
    return (x + _noise(rows, x.shape[1], device) * torch.where(chance(0.65), 10 ** (between(-70.0, -36.0) / 20), 0.0)).clamp(-1, 1)


def _chance(x: Tensor, share: float) -> Tensor:
    return torch.rand(len(x), 1, device=x.device) < share


def _between(x: Tensor, low: float, high: float) -> Tensor:
    return low + (high - low) * torch.rand(len(x), 1, device=x.device)


def _filtered(x: Tensor, in_room: Tensor, is_narrow: Tensor, edge: Tensor, decay_s: Tensor, wet: Tensor) -> Tensor:
    """A room (noise that dies away) and a low-pass, in one product of spectra; both causal or nearly so."""
    count = x.shape[1]
    length = SAMPLE_RATE // 2
    size = 1 << (count + length - 1).bit_length()
    time = torch.arange(length, device=x.device) / SAMPLE_RATE
    tail = torch.randn(len(x), length, device=x.device) * torch.exp(-6.9 * time / decay_s)
    tail = tail / tail.square().sum(dim=1, keepdim=True).sqrt()
    tail[:, : SAMPLE_RATE // 500] = 0
    response = torch.where(in_room, wet, 0.0) * tail
    response[:, 0] += 1
    hertz = torch.fft.rfftfreq(size, 1 / SAMPLE_RATE, device=x.device)
    gain = torch.where(is_narrow, 1 / (1 + (hertz / edge) ** 8), 1.0)
    filtered: Tensor = torch.fft.irfft(torch.fft.rfft(x, size) * torch.fft.rfft(response, size) * gain, size)
    return filtered[:, :count]


def _noise(rows: int, count: int, device: torch.device) -> Tensor:
    """Noise of RMS 1, each row of its own colour, from white to brown."""
    size = 1 << (count - 1).bit_length()
    hertz = torch.fft.rfftfreq(size, 1 / SAMPLE_RATE, device=device).clamp(min=40.0)
    slope = torch.rand(rows, 1, device=device)
    spectrum = torch.randn(rows, len(hertz), dtype=torch.complex64, device=device) * hertz**-slope
    noise: Tensor = torch.fft.irfft(spectrum, size)[:, :count]
    return noise / (noise.square().mean(dim=1, keepdim=True) + math.ulp(1.0)).sqrt()
