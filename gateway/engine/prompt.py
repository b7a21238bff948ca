"""Persona and voice to prompt rows: everything the model has read before the user speaks.

Rows are known in full before any audio, so a prompt is one chunked prefill (specs: moshi-model section 8). A voice is either codes (made
from audio) or an official bundle (row embeddings and the staging ring after them); both give the same rows. numpy only. Thread: any.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gateway.engine.layout import ASSISTANT, CODEBOOKS, ROW_WIDTH, SILENCE_FRAMES, USER, LMConfig, Profile

RING = 4  # columns of the reference's staging ring: the longest delay + 3; source: NVIDIA/personaplex moshi/models/lm.py, LMGen
EMBEDDED = -1  # entry of a row whose embedding is given instead


@dataclasses.dataclass(frozen=True, slots=True)
class Voice:
    """A voice prompt in one of its two forms."""

    name: str
    codes: NDArray[np.int64] | None = None  # int64 [N, CODEBOOKS]: the reference audio through the codec
    embeddings: NDArray[np.float32] | None = None  # float32 [M, dim]: rows 0..M-1, embedded
    ring: NDArray[np.int64] | None = None  # int64 [ROW_WIDTH, RING]: column = position mod RING


@dataclasses.dataclass(frozen=True, slots=True)
class PromptRows:
    """A prompt, ready for the model."""

    rows: NDArray[np.int64]  # int64 [P, ROW_WIDTH]; EMBEDDED where `embeddings` holds the row
    embeddings: NDArray[np.float32] | None  # float32 [M, dim], the first M rows
    forced: NDArray[np.int64]  # int64 [CODEBOOKS]: codes forced at position P, -1 is free
    user: NDArray[np.int64]  # int64 [CODEBOOKS]: the user's codes of the last prompt frame
    salt: str  # equal for equal prompts: key of the prefix cache


def wrap_persona(text: str) -> str:
    """Surround a role text with the mark the model was trained on; blank text stays empty (specs: moshi-protocol section 5)."""
    text = text.strip()
    if not text or (text.startswith("<system>") and text.endswith("<system>") and text != "<system>"):
        return text
    return f"<system> {text} <system>"


def initial_row(config: LMConfig) -> NDArray[np.int64]:
    """Row 0 of every call: no token of any stream."""
    row = np.full(ROW_WIDTH, config.audio_initial, dtype=np.int64)
    row[0] = config.text_initial
    return row


def build_prompt(config: LMConfig, profile: Profile, voice: Voice | None, persona: Sequence[int]) -> PromptRows:
    """Lay out voice, silence, persona, silence; without prompts (Moshi) the initial row alone."""
    first = initial_row(config)
    if not profile.takes_prompt:
        free = np.full(CODEBOOKS, -1, dtype=np.int64)
        return _prompt(first[None], None, free, np.full(CODEBOOKS, config.audio_initial, dtype=np.int64))
    silence, sine = np.array(profile.silence_codes), np.array(profile.sine_codes)
    forced = np.array([-1, *silence[1:]], dtype=np.int64)
    if voice is None or voice.codes is not None:
        codes = np.empty((0, CODEBOOKS), dtype=np.int64) if voice is None or voice.codes is None else voice.codes
        return _prompt(stagger(config, prompt_frames(config, profile, codes, persona)), None, forced, sine)
    assert voice.embeddings is not None
    assert voice.ring is not None
    count = len(voice.embeddings)
    embedded = np.full((count, ROW_WIDTH), EMBEDDED, dtype=np.int64)
    last = voice.ring[:, count % RING]
    # Position M + 1: text and first codebooks of silence, acoustic codes still of the last voice frame (specs: moshi-model section 8.1).
    rows = prompt_frames(config, profile, np.empty((0, CODEBOOKS), dtype=np.int64), persona)
    rows[0, 2 : ASSISTANT.stop] = voice.ring[2 : ASSISTANT.stop, (count + 1) % RING]
    rows[0, USER.start + 1 :] = voice.ring[USER.start + 1 :, (count + 1) % RING]
    return _prompt(np.concatenate([embedded, last[None], rows]), voice.embeddings, forced, sine)


def prompt_frames(config: LMConfig, profile: Profile, codes: NDArray[np.int64], persona: Sequence[int]) -> NDArray[np.int64]:
    """Frames int64 [F, ROW_WIDTH] of a prompt: the voice's codes int64 [N, CODEBOOKS], silence, the persona's pieces, silence."""
    silence, sine = profile.silence_codes, profile.sine_codes
    texts = [config.padding_id] * SILENCE_FRAMES + list(persona) + [config.padding_id] * SILENCE_FRAMES
    frames = [[config.padding_id, *frame, *sine] for frame in codes] + [[text, *silence, *sine] for text in texts]
    return np.array(frames, dtype=np.int64)


def stagger(config: LMConfig, frames: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows of forced frames int64 [F, ROW_WIDTH]: row 0 is initial, row p has text and first codebooks of frame p, the rest of p - 1."""
    rows = frames.copy()
    rows[0] = initial_row(config)
    for side in (ASSISTANT, USER):
        rows[2:, side.start + 1 : side.stop] = frames[1:-1, side.start + 1 : side.stop]
        rows[1:2, side.start + 1 : side.stop] = config.audio_initial
    return rows


def voice_ring(config: LMConfig, profile: Profile, codes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows 0..M-1 of a voice of N = M + 1 frames, int64 [M, ROW_WIDTH], and the staging ring after it, int64 [ROW_WIDTH, RING]."""
    frames = np.array([[config.padding_id, *frame, *profile.sine_codes] for frame in codes], dtype=np.int64)
    rows = stagger(config, frames)
    ring = np.repeat(initial_row(config)[:, None], RING, axis=1)
    count = len(rows) - 1
    ring[:, count % RING] = rows[count]
    for side in (ASSISTANT, USER):
        ring[side.start + 1 : side.stop, (count + 1) % RING] = frames[count, side.start + 1 : side.stop]
    return rows[:count], ring


def _prompt(
    rows: NDArray[np.int64], embeddings: NDArray[np.float32] | None, forced: NDArray[np.int64], user: NDArray[np.int64]
) -> PromptRows:
    digest = hashlib.sha256(rows.tobytes())
    if embeddings is not None:
        digest.update(embeddings.tobytes())
    return PromptRows(rows=rows, embeddings=embeddings, forced=forced, user=user, salt=digest.hexdigest())
