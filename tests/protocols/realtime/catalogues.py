"""A catalogue as a PersonaPlex checkpoint gives it, for tests of settings: one word of a persona is one frame of the prompt."""

from __future__ import annotations

from typing import Any

from protocols.realtime.settings import Catalogue

VOICES = ("NATF0", "NATF1", "NATF2", "NATF3", "NATM0", "NATM1", "NATM2", "NATM3")
VOICE_ROWS = 60
MAX_ROWS = 1024


def prompt_rows(voice: str | None, persona: str) -> int:
    rows = (VOICE_ROWS if voice else 0) + len(persona.split())
    if rows > 2 * MAX_ROWS:
        raise ValueError(f"voice and persona take {rows} frames, this model has room for {MAX_ROWS}")
    return rows


def catalogue(**changes: Any) -> Catalogue:
    fields: dict[str, Any] = {
        "model": "personaplex-7b",
        "voices": VOICES,
        "default_voice": "NATF2",
        "default_persona": "You are a teacher.",
        "prompt_rows": prompt_rows,
        "max_prompt_rows": MAX_ROWS,
    }
    return Catalogue(**(fields | changes))
