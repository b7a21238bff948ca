"""Names of voices as clients write them, and the voice that each means on this server (specs/realtime.md 2.5, Appendix A).

A name that is installed is taken, in any case and with `.pt` or `.wav` behind it; one of another service by the alias table; anything else
means the default voice, and the client is told so. The rule: only a name from the catalogue's list ever leaves here. Thread: any.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

from protocols import params
from protocols.errors import RemoteProtocolError
from protocols.realtime.fault import EventError, bad_value, excerpt
from protocols.realtime.options import RealtimeOptions

VOICE_PARAM = "session.audio.output.voice"
NO_VOICE = "default"  # how the only voice of a model without voice prompts is called on the wire, which wants a string

_MAX_LISTED = 24  # installed names in an error message
_SUFFIX = re.compile(r"\.(pt|wav)$", re.IGNORECASE)
_NATIVE = re.compile(r"(NAT|VAR)[FM][0-9]+", re.IGNORECASE)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """What the loaded model offers to callers."""

    model: str  # name under which it is served
    voices: tuple[str, ...]  # installed, without suffix; empty where the model takes none
    default_voice: str | None  # one of them
    default_persona: str  # of callers who send none; "" is none
    prompt_rows: Callable[[str | None, str], int]  # frames of the model's window that a voice and a persona take; ValueError: too many
    max_prompt_rows: int  # the most that they may take


def resolve_voice(name: str, catalogue: Catalogue, options: RealtimeOptions) -> tuple[str | None, bool]:
    """Return the installed voice that a name means (None: the model takes none), and whether the client must be told that it is another.

    Raises:
        EventError: a name of this model family that is not installed, or one that could be a path; the latter is not repeated.
    """
    try:
        name = params.voice_name(name) or NO_VOICE
    except RemoteProtocolError as exc:
        raise EventError("invalid_value", f"Invalid value for '{VOICE_PARAM}': {exc.detail}.", VOICE_PARAM) from None
    stem = _SUFFIX.sub("", name)
    installed = _find(name, catalogue) or _find(stem, catalogue)
    if installed is not None:
        return installed, False
    alias = {key.casefold(): target for key, target in options.voice_aliases.items()}.get(stem.casefold())
    if alias is not None and (not alias or (target := _find(alias, catalogue)) is not None):
        return (target if alias else catalogue.default_voice), False
    if _NATIVE.fullmatch(stem):
        listed = ", ".join(catalogue.voices[:_MAX_LISTED]) or "none"
        raise bad_value(VOICE_PARAM, f"is not installed: {excerpt(name)}; installed are: {listed}")
    return catalogue.default_voice, name != NO_VOICE


def _find(name: str, catalogue: Catalogue) -> str | None:
    if name in catalogue.voices:
        return name
    return {voice.casefold(): voice for voice in catalogue.voices}.get(name.casefold())
