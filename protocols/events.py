"""The internal vocabulary between every wire and the session: frozen, keyword-only, validated when made.

`ClientEvent` flows from a codec into `Session.push`, `ServerEvent` from `Session.events` into a codec. Nothing here knows a wire, a socket
or a model. An illegal event cannot exist: constructors raise ValueError. Arrays are owned by the event; nobody writes to them
afterwards. Thread: any.
"""

from __future__ import annotations

import dataclasses
import enum
import math

import numpy as np
from numpy.typing import NDArray

from protocols.errors import ErrorKind

MAX_SEED = 2**63 - 1  # seeds are keyed as signed 64-bit integers in the sampler


class Pacing(enum.Enum):
    """Who keeps the time of a call's input."""

    LIVE = "live"  # a person: a full inbox drops its oldest frame, a full outbox its oldest audio
    SCRIPT = "script"  # a file: nothing is dropped; a full inbox stops the reading of the socket


class Clock(enum.Enum):
    """Who supplies the frames of a call (DESIGN.md section 3)."""

    FRAMES = "frames"  # only what the caller sends; a silent socket pauses the call
    REALTIME = "realtime"  # one frame every frame duration: what the caller sent by then, padded with silence


class EndReason(enum.Enum):
    """How a call ended without an error."""

    CALLER = "caller"  # the caller said so or hung up
    FINISHED = "finished"  # EndOfInput answered to the last sample
    LIMIT = "limit"  # the call's length limit


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """Per-call sampling. `None` means the checkpoint's default.

    Raises:
        ValueError: a value out of its range (the message names the field).
    """

    text_temperature: float | None = None  # >= 0; 0 is greedy
    text_topk: int | None = None  # >= 0; 0 keeps the whole vocabulary
    audio_temperature: float | None = None  # >= 0; 0 is greedy
    audio_topk: int | None = None  # >= 0; 0 keeps the whole codebook
    text_seed: int | None = None  # key of the text draws; None is random
    audio_seed: int | None = None  # key of the audio draws; None is random
    pad_mult: float | None = None  # P(padding) is multiplied by e**pad_mult before top-k
    repetition_penalty: float | None = None  # >= 1 damps repeated text tokens, 1 is off
    repetition_penalty_context: int | None = None  # text tokens looked back over, 0..MAX_PENALTY_CONTEXT

    def __post_init__(self) -> None:
        for name in ("text_temperature", "audio_temperature"):
            _check(self, name, lambda value: 0 <= value <= 100, "0 to 100")
        for name in ("text_topk", "audio_topk"):
            _check(self, name, lambda value: 0 <= value < 2**31, "0 or more")
        for name in ("text_seed", "audio_seed"):
            _check(self, name, lambda value: 0 <= value <= MAX_SEED, f"0 to {MAX_SEED}")
        _check(self, "pad_mult", lambda value: -50 <= value <= 50, "-50 to 50")
        _check(self, "repetition_penalty", lambda value: 0.01 <= value <= 100, "0.01 to 100")
        _check(self, "repetition_penalty_context", lambda value: 0 <= value <= MAX_PENALTY_CONTEXT, f"0 to {MAX_PENALTY_CONTEXT}")


MAX_PENALTY_CONTEXT = 256  # the web clients' slider ends at 200


def _check(options: SamplingOptions, name: str, is_legal: object, legal: str) -> None:
    value = getattr(options, name)
    if value is None:
        return
    # Whole numbers have no limit, and isfinite cannot take those that no float can hold; comparing works for all.
    is_finite = isinstance(value, int) or math.isfinite(value)
    if not is_finite or not is_legal(value):  # type: ignore[operator]
        raise ValueError(f"{name} must be {legal}" + (f", not {value}" if abs(value) <= MAX_SEED + 1 else ""))


# -- ClientEvent: what a caller can ask of a session ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """Take a slot and compute nothing yet; answered by Reserved, each time anew. An Open must follow; no audio comes before it.

    Who pushes this keeps an idle time of its own: no limit of the session ends a reservation.
    """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """Start the call: the first event of a session, or the first after Reserve."""

    voice_prompt: str | None = None  # name from the checkpoint's allow-list; None is the server's default
    persona: str | None = None  # role text without wrapping; None is the server's default, blank is none
    sampling: SamplingOptions = SamplingOptions()
    pacing: Pacing = Pacing.LIVE
    clock: Clock = Clock.FRAMES  # REALTIME goes with Pacing.LIVE
    max_frames: int | None = None  # upper bound of the call in frames, at most the server's own limit

    def __post_init__(self) -> None:
        if self.max_frames is not None and self.max_frames < 1:
            raise ValueError(f"max_frames must be 1 or more, not {self.max_frames}")
        if self.clock is Clock.REALTIME and self.pacing is not Pacing.LIVE:
            raise ValueError("a realtime clock needs live pacing")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reprime:
    """Begin again with another prompt in the same slot: the epoch rises by one, the prompt is read, Ready follows again.

    Legal while the model listens: after Ready, and not before the next one. Audio that waits or arrives meanwhile is kept, frames that were
    on their way to the model too; the limit of the call and what Steer has set go on. Clock.REALTIME only.
    """

    voice_prompt: str | None = None  # these three as in Open
    persona: str | None = None
    sampling: SamplingOptions = SamplingOptions()
    # so many of the last frames with audio of the caller that the model has heard are heard again first, at most MAX_REPLAY_FRAMES; as
    # fast as the model can, and each is answered as any other
    replay_frames: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.replay_frames <= MAX_REPLAY_FRAMES:
            raise ValueError(f"replay_frames must be 0 to {MAX_REPLAY_FRAMES}, not {self.replay_frames}")


MAX_REPLAY_FRAMES = 25  # 2 s (specs/realtime.md 4.1)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AudioIn:
    """Audio of the user, any length. The session carves frames out of it."""

    pcm: NDArray[np.float32]  # float32 [N], mono, the session's sample rate, finite

    def __post_init__(self) -> None:
        if self.pcm.dtype != np.float32 or self.pcm.ndim != 1:
            raise ValueError(f"pcm must be float32 [N], not {self.pcm.dtype} {list(self.pcm.shape)}")
        if not np.isfinite(self.pcm).all():
            raise ValueError("pcm must be finite")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EndOfInput:
    """The caller has said everything: pad the last partial frame, answer it, then end the call."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BargeIn:
    """The user speaks over the assistant: audio not yet played is thrown away (the epoch rises); the model goes on."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Stop the sentence that is being said: as BargeIn, and the model is steered to silence for `steer_frames` frames."""

    steer_frames: int = 0

    def __post_init__(self) -> None:
        if self.steer_frames < 0:
            raise ValueError("steer_frames must be 0 or more")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Steer:
    """Set how long the model is kept silent and how eager it is to speak, from the next step on. The epoch goes on.

    Before the model listens it is remembered.
    """

    frames: int = 0  # so many more frames are forced to silence, in place of what was asked for before; 0 lets it speak
    pad_bias: float = 0.0  # added to the log-probability of padding in every step until the next Steer; below 0 urges it to speak

    def __post_init__(self) -> None:
        if self.frames < 0:
            raise ValueError("frames must be 0 or more")
        if not -100 <= self.pad_bias <= 100:
            raise ValueError("pad_bias must be -100 to 100")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClearInput:
    """Throw away audio that the model has not heard; Heard does not count it as skipped (Clock.REALTIME only)."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunClock:
    """Stop the session clock, or let it run on; audio that arrives starts it again as well (Clock.REALTIME only)."""

    is_running: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HangUp:
    """End the call now: for `reason` (`kind` None, Ended follows) or for a fault that the codec found (Failed follows)."""

    kind: ErrorKind | None = None
    reason: EndReason = EndReason.CALLER
    detail: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The client says how much of the assistant's audio the listener has heard."""

    # milliseconds of the audio that was sent to this client, counted from the first sample it got: audio that was dropped on our side is
    # not in them, and what the client threw away after a barge-in is
    played_ms: int

    def __post_init__(self) -> None:
        if self.played_ms < 0:
            raise ValueError("played_ms must be 0 or more")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A message that the codec refused without ending the connection; the pump hands it back to `send`."""

    kind: ErrorKind
    detail: str


ClientEvent = (
    Reserve | Open | Reprime | AudioIn | EndOfInput | BargeIn | Cancel | Steer | ClearInput | RunClock | HangUp | Played | Rejected
)


# -- ServerEvent: what a session tells its caller ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """Every slot is taken; the caller waits."""

    position: int  # 1 is next


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """The answer to Reserve: a slot is held for this caller."""

    session_id: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The prompt is in the model: live audio is consumed from now on. Sent once, and once more for every Reprime."""

    session_id: str
    voice_prompt: str | None  # the voice in effect
    sampling: SamplingOptions  # every field resolved, none is None
    model: str  # name of the checkpoint
    epoch: int = 0  # of the frames that follow


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AudioOut:
    """One frame of the assistant's voice."""

    pcm: NDArray[np.float32]  # float32 [S]
    frame_idx: int  # output frames since the first Ready, 0-based: media time is frame_idx * frame duration
    epoch: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """Text of the inner monologue: complete UTF-8, a leading space at a word boundary."""

    text: str
    frame_idx: int  # the frame in which the token appeared
    epoch: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What the model heard in a step: the last event of its frame, sent even where AudioOut was dropped (Clock.REALTIME only)."""

    pcm: NDArray[np.float32]  # float32 [S], as the model got it
    real_samples: int  # of the caller, heard for the first time; they come first, the rest is padding. 0 where all of it is a replay
    skipped_samples: int  # of the caller, dropped before these because too much waited
    frame_idx: int  # of the AudioOut that answers it
    is_replay: bool = False  # the model has heard all of it before: Reprime.replay_frames
    epoch: int  # as captured when the step began


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """Something the caller should know while the call goes on (call limit near, implausible level, frames dropped)."""

    detail: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The last event of a session that ended well."""

    reason: EndReason
    detail: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The last event of a session that ended badly."""

    kind: ErrorKind
    detail: str


ServerEvent = Queued | Reserved | Ready | AudioOut | TextDelta | Heard | Warned | Rejected | Ended | Failed
