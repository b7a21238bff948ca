"""A Realtime connection without a network: the codec, a client that sends dicts, and a session that behaves as the real one, on a clock by
hand.

The model is a script: in which frames it sounds a tone and which text it says. A steered or cancelled frame is silent, as in the engine.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from protocols.codec import Close
from protocols.errors import ErrorKind
from protocols.events import (
    AudioIn,
    AudioOut,
    BargeIn,
    Cancel,
    ClearInput,
    ClientEvent,
    Ended,
    EndReason,
    Failed,
    HangUp,
    Heard,
    Open,
    Ready,
    Reprime,
    Reserve,
    Reserved,
    RunClock,
    SamplingOptions,
    ServerEvent,
    Steer,
    TextDelta,
)
from protocols.realtime.codec import RealtimeCodec
from protocols.realtime.detector import Activity, SpeechDetector
from protocols.realtime.handshake import read_handshake
from protocols.realtime.meter import Count, Timer
from protocols.realtime.options import RealtimeOptions
from protocols.realtime.settings import Catalogue
from tests.clients.record import Record

RATE = 24_000
FRAME = 1920
FRAME_S = FRAME / RATE
VOICES = tuple(f"{family}{kind}{i}" for family, most in (("NAT", 4), ("VAR", 5)) for kind in "FM" for i in range(most))
OUTBOX_FRAMES = 25  # audio that the session keeps for a client that does not read
BASE_ROWS = 77  # of voice and silence in a prompt
CONNECTED_UNIX_S = 1_790_000_000.0

Pcm = NDArray[np.float32]


def tone(hz: float, num_samples: int = FRAME, level_db: float = -12.0, start: int = 0) -> Pcm:
    """A sine of the given level (RMS of a full-scale sine is -3 dB)."""
    at = np.arange(start, start + num_samples)
    return (10 ** (level_db / 20) * np.sin(2 * np.pi * hz * at / RATE)).astype(np.float32)


def s16(pcm: Pcm) -> bytes:
    return np.round(pcm * 32767).astype("<i2").tobytes()


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


Z80 = b64(bytes(2 * FRAME))
T80 = b64(s16(tone(440)))


@dataclasses.dataclass(slots=True)
class Meters:
    """Counts what is counted."""

    counts: dict[tuple[Count, str], int] = dataclasses.field(default_factory=dict)
    times: dict[Timer, list[float]] = dataclasses.field(default_factory=dict)

    def count(self, what: Count, label: str = "", by: int = 1) -> None:
        self.counts[what, label] = self.counts.get((what, label), 0) + by

    def observe(self, what: Timer, seconds: float) -> None:
        self.times.setdefault(what, []).append(seconds)


def prompt_rows(voice: str | None, persona: str) -> int:
    """One row for a word."""
    return BASE_ROWS + len(persona.split())


def catalogue(**changes: Any) -> Catalogue:
    fields: dict[str, Any] = {
        "model": "personaplex-7b",
        "voices": VOICES,
        "default_voice": "NATF2",
        "default_persona": "You are kind.",
        "prompt_rows": prompt_rows,
        "max_prompt_rows": 1024,
    }
    return Catalogue(**{**fields, **changes})


class LevelDetector:
    """Speech is what is louder than -42 dBFS; the answer comes at once, or `late` frames later."""

    def __init__(self, late: int = 0) -> None:
        self._late = late
        self._found: list[Activity] = []

    def feed(self, frame_idx: int, pcm: Pcm) -> None:
        self._found.append(Activity(frame_idx, float(np.sqrt(np.mean(pcm**2)) > 10 ** (-42 / 20))))

    def take(self) -> list[Activity]:
        found, self._found = self._found[: len(self._found) - self._late], self._found[len(self._found) - self._late :]
        return found

    def close(self) -> None:
        self._found.clear()


class Rig:
    """One connection.

    Attributes:
        now: monotonic seconds, moved by `run`.
        sent: what the server sent, as parsed; `closed` is its Close.
        pushed: what the session was told.
        heard: input frames that the model consumed, with their real samples; frames of padding alone are not in it.
    """

    def __init__(
        self,
        query: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
        detector: SpeechDetector | None = None,
        prime_s: float = 0.2,
        initial: Mapping[str, Any] | None = None,
        pads: bool = True,
        is_full: bool = False,
        **changes: Any,
    ) -> None:
        pairs = [tuple(part.split("=", 1)) for part in query.split("&") if part]
        self.now = 1000.0
        self.meters = Meters()
        self.codec = RealtimeCodec(
            read_handshake(pairs, dict(headers or {})),
            catalogue(**changes),
            RealtimeOptions(**dict(options or {})),
            sample_rate=RATE,
            frame_samples=FRAME,
            detector=detector or LevelDetector(),
            meter=self.meters,
            connected_s=self.now,
            connected_unix_s=CONNECTED_UNIX_S,
            max_call_s=14_400.0,
            initial=initial,
        )
        self.sent: list[dict[str, Any]] = []
        self.at: list[float] = []  # time of each message in `sent`
        self.capture: list[Record] = []
        self.closed: Close | None = None
        self.pushed: list[ClientEvent] = []
        self.heard: list[Pcm] = []
        self.epoch = 7
        self.frame_idx = 0
        self.steer = 0
        self.pad_bias = 0.0
        self.is_blocked = False  # the client takes nothing off the wire: nothing is written, the session keeps what it can
        self._outbox: list[ServerEvent] = []
        self._pads = pads
        self._is_full = is_full
        self._prime_s = prime_s
        self._ready_s = math.inf
        self._tick_s = math.inf
        self._queue = np.zeros(0, np.float32)
        self._replays: list[Pcm] = []
        self._tones: dict[int, float] = {}
        self._texts: dict[int, str] = {}
        self._user: Callable[[int], Pcm | None] | None = None
        self._is_over = False
        self._is_paused = False
        self._take(self.codec.connect({}))
        self._pump()

    # -- The client

    def client(self, *messages: Mapping[str, Any] | str | bytes) -> None:
        """Send messages in one packet: all are read before anything is written."""
        for message in messages:
            raw = json.dumps(message) if isinstance(message, Mapping) else message
            self._record(message if isinstance(message, dict) else None, is_client=True)
            self._take(self.codec.receive(raw, self.now))
        self._pump()

    def append(self, pcm: Pcm) -> None:
        self.client({"type": "input_audio_buffer.append", "audio": b64(s16(pcm))})

    def talk(self, seconds: float, hz: float | None = 300.0, level_db: float = -12.0) -> None:
        """Send user audio in real time, 20 ms at a time; None is silence."""
        for i in range(round(seconds / 0.02)):
            self.append(np.zeros(480, np.float32) if hz is None else tone(hz, 480, level_db, start=i * 480))
            self.run(0.02)

    def take(self) -> list[dict[str, Any]]:
        """Return what the server has sent since the last call."""
        sent, self.sent = self.sent, []
        self.at = []
        return sent

    def types(self) -> list[str]:
        return [message["type"] for message in self.sent]

    # -- The model

    def says(self, first: int, last: int, hz: float = 440.0, **texts: str) -> None:
        """Sound a tone in frames first..last inclusive; texts by frame: f5=" Hel"."""
        for frame_idx in range(first, last + 1):
            self._tones[frame_idx] = hz
        self._texts.update({int(name[1:]): text for name, text in texts.items()})

    def is_silent_from(self, frame_idx: int) -> None:
        """Forget the script from a frame on."""
        self._tones = {i: hz for i, hz in self._tones.items() if i < frame_idx}
        self._texts = {i: text for i, text in self._texts.items() if i < frame_idx}

    # -- Time

    def run(self, seconds: float) -> None:
        """Let time pass, 5 ms at a time."""
        for _ in range(round(seconds / 0.005)):
            self.now += 0.005
            if self.now >= self._ready_s:
                self._ready_s = math.inf
                self._tick_s = math.inf if self._is_paused else self.now + FRAME_S
                self._tell(Ready(session_id="s1", voice_prompt="NATF2", sampling=SamplingOptions(), model="m", epoch=self.epoch))
            if self.now >= self._tick_s and (self._pads or self._queue.size >= FRAME):
                self._tick_s += FRAME_S
                self.step()
            if self.now >= self.codec.due_s:
                self._pump()

    def frames(self, num_frames: int) -> None:
        """Let so many frames pass."""
        last = self.frame_idx + num_frames
        while self.frame_idx < last and not self._is_over:
            self.run(0.005)

    def until_live(self) -> None:
        """Run until the model is primed and the clock ticks."""
        for _ in range(1000):
            if self._tick_s < math.inf and self._ready_s == math.inf:
                return
            self.run(0.005)
        raise AssertionError("the call never became live")

    def step(self) -> None:
        """One frame of the model."""
        is_replay = bool(self._replays)
        real = np.zeros(0, np.float32) if is_replay else self._queue[:FRAME]
        heard = self._replays.pop(0) if is_replay else np.zeros(FRAME, np.float32)
        self._queue = self._queue[real.size :]
        heard[: real.size] = real
        if real.size:
            self.heard.append(heard)
        i, is_steered = self.frame_idx, self.steer > 0
        self.frame_idx += 1
        self.steer = max(0, self.steer - 1)
        hz = None if is_steered else self._tones.get(i)
        text = "" if is_steered else self._texts.get(i, "")
        pcm = np.zeros(FRAME, np.float32) if hz is None else tone(hz, start=i * FRAME)
        self._tell(AudioOut(pcm=pcm, frame_idx=i, epoch=self.epoch))
        if text:
            self._tell(TextDelta(text=text, frame_idx=i, epoch=self.epoch))
        self._tell(Heard(pcm=heard, real_samples=real.size, skipped_samples=0, frame_idx=i, is_replay=is_replay, epoch=self.epoch))
        if is_replay:
            self.step()  # as fast as the model can

    def end(self, last: Ended | Failed) -> None:
        """The session is over for a reason of the gateway's."""
        self._is_over = True
        self._ready_s = self._tick_s = math.inf
        self._tell(last)

    # -- Private: the session

    def block(self) -> None:
        """The client stops reading."""
        self.is_blocked = True

    def unblock(self) -> None:
        """The client reads again."""
        self.is_blocked = False
        self._pump()
        while self._outbox:
            self._tell(self._outbox.pop(0))

    def _tell(self, event: ServerEvent) -> None:
        if self.is_blocked:
            self._outbox.append(event)
            audio = [waiting for waiting in self._outbox if isinstance(waiting, AudioOut)]
            if len(audio) > OUTBOX_FRAMES:
                oldest = audio[0].frame_idx
                self._outbox = [waiting for waiting in self._outbox if not (_is_output(waiting) and waiting.frame_idx == oldest)]
            return
        assert self.codec.send(event, self.now) == []
        self._pump()

    def _purge(self) -> None:
        self.epoch += 1
        self._outbox = [waiting for waiting in self._outbox if not _is_output(waiting)]

    def _pump(self) -> None:
        if self.is_blocked:
            return
        while outputs := self.codec.due(self.now):
            self._take(outputs)

    def _take(self, outputs: Sequence[Any]) -> None:
        for output in outputs:
            match output:
                case str():
                    assert self.closed is None, "nothing is sent after the close"
                    self.sent.append(json.loads(output))
                    self.at.append(self.now)
                    self._record(self.sent[-1], is_client=False)
                case Close():
                    assert self.closed is None
                    self.closed = output
                    self._record(None, is_client=False, close_code=int(output.code))
                case _:
                    self.pushed.append(output)
                    self._event(output)

    def _run_clock(self, is_running: bool) -> None:
        self._is_paused = not is_running
        if self._ready_s == math.inf:
            self._tick_s = self.now + FRAME_S if is_running else math.inf

    def _record(self, event: dict[str, Any] | None, *, is_client: bool, close_code: int | None = None) -> None:
        line = len(self.capture) + 1
        self.capture.append(Record(line=line, is_client=is_client, seconds=self.now - 1000.0, event=event, close_code=close_code))

    def _event(self, event: ClientEvent) -> None:
        match event:
            case Reserve() if not self._is_full:
                self._tell(Reserved(session_id="s1"))
            case Open():
                self._ready_s = self.now + self._prime_s
            case Reprime():
                self._purge()
                self._ready_s, self._tick_s = self.now + self._prime_s, math.inf
                self._replays = list(self.heard[-event.replay_frames :]) if event.replay_frames else []
            case AudioIn():
                if self._is_paused:
                    self._run_clock(True)
                self._queue = np.concatenate([self._queue, event.pcm])
            case Cancel():
                self._purge()
                self.steer = max(self.steer, event.steer_frames)
            case BargeIn():
                self._purge()
            case Steer():
                self.steer, self.pad_bias = event.frames, event.pad_bias
            case ClearInput():
                self._queue = np.zeros(0, np.float32)
            case RunClock():
                self._run_clock(event.is_running)
            case HangUp(kind=None):
                self._is_over = True
                self._ready_s = self._tick_s = math.inf
                self._tell(Ended(reason=event.reason))
            case HangUp():
                self._is_over = True
                self._ready_s = self._tick_s = math.inf
                assert event.kind is not None
                self._tell(Failed(kind=event.kind, detail=event.detail))
            case Reserve():
                pass
            case _:
                raise AssertionError(f"the wire pushed {event}")


def _is_output(event: ServerEvent) -> TypeGuard[AudioOut | TextDelta]:
    return isinstance(event, AudioOut | TextDelta)


def audio_of(messages: Sequence[Mapping[str, Any]]) -> bytes:
    """The audio of all deltas, in either dialect."""
    return b"".join(base64.b64decode(m["delta"]) for m in messages if m["type"] in ("response.output_audio.delta", "response.audio.delta"))


def hears(data: bytes, hz: float, rate: int = RATE) -> bool:
    """Whether PCM16 holds energy at a frequency."""
    pcm = np.frombuffer(data, "<i2") / 32768
    if not pcm.size:
        return False
    at = np.arange(pcm.size)
    return bool(abs(np.sum(pcm * np.exp(-2j * np.pi * hz * at / rate))) > 20)


CAPACITY = Failed(kind=ErrorKind.CAPACITY, detail="every slot is taken")
EXPIRED = Ended(reason=EndReason.LIMIT)
