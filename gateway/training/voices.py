"""Prompts of training: the voices' codes, the codec's codes of silence and of the sine, and the model profile that follows from them.

Thread: any.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gateway.engine.layout import CODEBOOKS, LMConfig, Profile
from gateway.training.bank import SpeechBank
from gateway.training.codec_model import TrainedMimi
from gateway.training.corpus import SAMPLE_RATE
from gateway.training.dialogues import FRAME

SETTLED = 24  # frames after which a stream of silence or of the sine repeats itself
PROMPT_FRAMES = 26  # of a voice prompt, 2.1 s
PROMPTS_A_VOICE = 4  # the first one ships; the others keep the model from learning it by heart


@dataclasses.dataclass(frozen=True, slots=True)
class VoicePrompts:
    """What a conversation may begin with."""

    profile: Profile
    codes: dict[str, list[NDArray[np.int64]]]  # voice -> prompts, each int64 [PROMPT_FRAMES, CODEBOOKS]

    def save(self, path: Path) -> None:
        """Write what `export` needs: prompts by voice, and the settled codes for `config.json`."""
        codes = {voice: [torch.from_numpy(prompt) for prompt in found] for voice, found in self.codes.items()}
        settled = {"silence_codes": list(self.profile.silence_codes), "sine_codes": list(self.profile.sine_codes)}
        torch.save({"codes": codes, **settled}, path)


    @classmethod
    def load(cls, path: Path, raw_config: dict[str, Any], config: LMConfig) -> VoicePrompts:
        """Read what `save` wrote."""
        stored = torch.load(path, weights_only=True)
        profile = Profile.from_json(raw_config, config, is_personaplex=False)
        silence, sine = tuple(stored["silence_codes"]), tuple(stored["sine_codes"])
        codes = {voice: [prompt.numpy() for prompt in found] for voice, found in stored["codes"].items()}
        return cls(dataclasses.replace(profile, silence_codes=silence, sine_codes=sine), codes)


def settled_codes(mimi: TrainedMimi) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The codec's codes of silence and of a 440 Hz sine at amplitude 0.5: what it repeats most once the stream has settled."""
    time = torch.arange(4 * SETTLED * FRAME, device=mimi.device) / SAMPLE_RATE
    pcm = torch.stack((torch.zeros_like(time), 0.5 * torch.sin(2 * torch.pi * 440 * time)))
    silence, sine = (tuple(torch.mode(codes[SETTLED:], dim=0).values.tolist()) for codes in mimi.encode_codes(pcm))
    return silence, sine


def voice_prompts(bank: SpeechBank, mimi: TrainedMimi, raw_config: dict[str, Any], config: LMConfig) -> VoicePrompts:
    """Encode each voice's longest clips as prompts."""
    silence, sine = settled_codes(mimi)
    profile = Profile.from_json(raw_config, config, is_personaplex=False)
    profile = dataclasses.replace(profile, silence_codes=silence, sine_codes=sine)
    codes = {}
    for voice in bank.index.voices:
        clips = [clip for (name, _), found in bank.index.replies.items() if name == voice for clip in (bank.index.clips[i] for i in found)]
        long = sorted((clip for clip in clips if clip.length >= PROMPT_FRAMES * FRAME), key=lambda clip: (clip.length, clip.text))
        chosen = long[:PROMPTS_A_VOICE] or clips[:1]
        pcm = [bank.samples[clip.start : clip.start + clip.length].float() / 32768 for clip in chosen]
        padded = torch.stack([torch.nn.functional.pad(x, (0, PROMPT_FRAMES * FRAME))[: PROMPT_FRAMES * FRAME] for x in pcm])
        codes[voice] = list(mimi.encode_codes(padded).cpu().numpy()[:, :, :CODEBOOKS])
    return VoicePrompts(profile, codes)
