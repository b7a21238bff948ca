"""When the model is primed, with what, and when again: the life of a call (specs/realtime.md 4.1, 4.10).

    IDLE ──trigger, debounce──> PRIMING ──Ready──> LIVE <──> PARKED

Frameworks send defaults first and the persona in a later message, so priming waits a little, and is done again when the persona comes late.
The rule: the session is told Open once, Reprime afterwards, and never a Reprime while it reads a prompt. Thread: any, one at a time.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from protocols.events import MAX_REPLAY_FRAMES, AudioIn, ClearInput, Clock, Open, Ready, Reprime, RunClock
from protocols.realtime.call import Call
from protocols.realtime.fault import EventError
from protocols.realtime.meter import Timer
from protocols.realtime.server_events import Item
from protocols.realtime.speaking import Speaker

ARM_MS = 80  # "(a) >= 80 ms of audio written"
DEBOUNCE_S = 0.15  # "150 ms have passed since the last session.update"
DEBOUNCE_LIMIT_S = 0.4  # "at the latest 400 ms after the trigger"
DEBOUNCE_PERSONA_S = 0.05  # "... with non-empty instructions has already been seen and a further 50 ms passed"
DEFER_FRAMES = 5  # "the user is inactive for 400 ms" (4.10)
MAX_TURNS = 64  # of the conversation that are looked at when another prompt is made
MAX_TOKEN_CHARS = 32  # no tokeniser gets further with speech that can be read: longer text is not even counted
PARK_FRAMES = 25  # "model output silent for 2 s"
NO_EPOCH = -1  # no output is current until the next Ready


class Stage(enum.Enum):
    """Where a call is in its life; the values are on the wire (x_duplex.state)."""

    IDLE = "idle"  # a slot is reserved, nothing is computed
    PRIMING = "priming"
    LIVE = "live"
    PARKED = "parked"  # live, but the clock stands still


class Primer:
    """Priming of one call.

    Attributes:
        stage: see above.
        is_deferred: a changed persona waits for a silence.
        has_trimmed_history: earlier turns did not fit into the prompt.
    """

    def __init__(self, call: Call, speaker: Speaker) -> None:
        self.stage = Stage.IDLE
        self.is_deferred = False
        self.has_trimmed_history = False
        self._call = call
        self._speaker = speaker
        self._early: list[NDArray[np.float32]] = []  # audio before the session takes any
        self._early_samples = 0
        self._extra: list[str] = []  # text of response.create before anything was primed
        self._triggered_s: float | None = None
        self._updated_s: float | None = None
        self._has_persona = False
        self._num_changes = 0  # of items and requests that belong to the prompt
        self._primed: object = None  # the key of what the session was told
        self._persona_text: str | None = None  # likewise
        self._system_ids: list[str] = []  # items of the system that belong to the prompt
        self._audio_s = 0.0  # last append
        self._idle_frames = 0

    # Public: what the client does

    def audio(self, pcm: NDArray[np.float32], now: float) -> None:
        """Pass audio on, or keep it until the session can take it."""
        self.touch(now)
        if self.stage is not Stage.IDLE:
            self._call.events.append(AudioIn(pcm=pcm))
            return
        self._early.append(pcm)
        self._early_samples += pcm.size
        if self._early_samples * 1000 >= ARM_MS * self._call.rate:
            self.trigger(now)

    def clear_audio(self) -> None:
        """Throw away what the model has not heard, here or in the session."""
        self._forget_early()
        if self.stage is not Stage.IDLE:
            self._call.events.append(ClearInput())

    def trigger(self, now: float) -> None:
        """There is a reason to start; run the clock of a parked call."""
        if self.stage is Stage.IDLE and self._triggered_s is None:
            self._triggered_s = now
        self._audio_s = max(self._audio_s, now)
        self.wake()

    def touch(self, now: float) -> None:
        """The client is sending: a parked call goes on."""
        self._audio_s = now
        self.wake()

    def wake(self) -> None:
        """Let a parked call go on."""
        if self.stage is Stage.PARKED:
            self.stage = Stage.LIVE
            self._idle_frames = 0
            self._call.events.append(RunClock(is_running=True))

    def add_text(self, lines: Sequence[str], path: str) -> None:
        """Text of a request, which stands at `path`, belongs to the prompt as long as there is none.

        Raises:
            EventError: it is too long; nothing was added.
        """
        self._check_head([*self._extra, *lines], path)
        self._extra.extend(lines)
        self._num_changes += 1

    def check_item(self, item: Item) -> None:
        """See that an item fits into the prompt, where it belongs there.

        Raises:
            EventError: it does not; the oldest turns can be left out, but nothing of the system's.
        """
        if item.role == "system" and self._takes_items:
            self._check_head([*self._extra, _text(item)], "item.content")

    def item_changed(self, item: Item) -> bool:
        """An item came or went; return whether that still reaches the prompt: "Before the model is armed" (2.8.1)."""
        if not self._takes_items or not _text(item):
            return False
        if item.role == "system" and item.id not in self._system_ids:
            self._system_ids.append(item.id)
        self._num_changes += 1
        return True

    def updated(self, now: float) -> None:
        """A session.update was accepted: wait for the next one a little, or begin again with what has changed."""
        self._updated_s = now
        self._has_persona |= bool(self._call.config.instructions)
        if self.stage is not Stage.IDLE:
            self.prompt_changed()

    def prompt_changed(self, *, is_restart: bool = False) -> None:
        """Something that the prompt is made of may have changed."""
        if self.stage in (Stage.IDLE, Stage.PRIMING):
            return  # what is current then is primed, or primed again, anyway
        if self._key == self._primed:
            self.is_deferred = False
            return
        if not self._speaker.has_begun:
            self._reprime(MAX_REPLAY_FRAMES)
        elif is_restart or self.stage is Stage.PARKED:
            self._reprime(0)
        else:
            self.is_deferred = True

    # Public: what the session does

    def ready(self, event: Ready, now: float) -> bool:
        """The prompt is in the model; return whether a change that was announced as pending is in effect now."""
        if self._triggered_s is not None:
            self._call.meter.observe(Timer.ARMING, now - self._triggered_s)
            self._triggered_s = None
        was_deferred, self.is_deferred = self.is_deferred, False
        self.stage = Stage.LIVE
        self._idle_frames = 0
        self._audio_s = now
        self._call.session_epoch = event.epoch
        if self._key != self._primed:
            self._reprime(0 if self._speaker.has_begun else MAX_REPLAY_FRAMES)
            self.is_deferred = was_deferred
            return False
        default = self._call.catalogue.default_persona
        self._call.prompt_tokens = max(0, self._count(default if self._persona_text is None else self._persona_text))
        self._speaker.start()
        return was_deferred

    def step(self, inactive_frames: int, now: float) -> None:
        """A frame has passed: see whether a change can be made now, or whether the clock may rest."""
        if self.stage is Stage.PARKED and self._speaker.track is not None:
            self.wake()  # the frame that was under way when the clock was stopped began a response
        if self.stage is not Stage.LIVE:
            return
        if self._call.timeline.queued_ms >= self._call.frame_ms:
            self._audio_s = now  # an upload is being heard
        self._idle_frames = 0 if self._speaker.track is not None else self._idle_frames + 1
        if self._speaker.track is not None:
            return
        if self.is_deferred:
            if inactive_frames >= DEFER_FRAMES:
                self._reprime(0)
        elif self._idle_frames >= PARK_FRAMES and now - self._audio_s >= self._call.options.park_after_ms / 1000:
            self.stage = Stage.PARKED
            self._call.events.append(RunClock(is_running=False))

    @property
    def due_s(self) -> float:
        """When priming begins, if a reason has come; inf otherwise."""
        if self.stage is not Stage.IDLE or self._triggered_s is None:
            return math.inf
        if self._updated_s is None:
            quiet_s = self._triggered_s + DEBOUNCE_S
        else:
            quiet_s = self._updated_s + (DEBOUNCE_PERSONA_S if self._has_persona else DEBOUNCE_S)
        return max(self._triggered_s, min(quiet_s, self._triggered_s + DEBOUNCE_LIMIT_S))

    def expire(self, now: float) -> None:
        """Begin priming when it is time."""
        if now < self.due_s:
            return
        self.stage, self._primed = Stage.PRIMING, self._key
        persona = self._persona_text = self._persona()
        config = self._call.config
        self._call.events.append(
            Open(voice_prompt=config.resolved_voice, persona=persona, sampling=config.sampling, clock=Clock.REALTIME)
        )
        self._call.events.extend(AudioIn(pcm=pcm) for pcm in self._early)
        self._forget_early()

    # Private

    def _forget_early(self) -> None:
        self._early.clear()
        self._early_samples = 0

    def _reprime(self, replay_frames: int) -> None:
        was_parked = self.stage is Stage.PARKED
        self.stage, self._primed = Stage.PRIMING, self._key
        persona = self._persona_text = self._persona()
        config = self._call.config
        self._call.new_epoch(
            Reprime(voice_prompt=config.resolved_voice, persona=persona, sampling=config.sampling, replay_frames=replay_frames)
        )
        self._call.session_epoch = NO_EPOCH
        if was_parked:
            self._call.events.append(RunClock(is_running=True))

    @property
    def _takes_items(self) -> bool:
        """Whether text of the client still belongs to the prompt."""
        return self.stage in (Stage.IDLE, Stage.PRIMING) and not self._speaker.has_begun

    @property
    def _key(self) -> object:
        """What decides whether the prompt is another one; turns that were spoken since do not."""
        config = self._call.config
        return config.resolved_voice, config.instructions, self._num_changes

    def _persona(self) -> str | None:
        """Instructions and what the system said, then earlier turns, as many of the last as fit; None is the server's default."""
        instructions = self._call.config.instructions
        head = self._head(self._extra)
        turns = self._turns() if not self._speaker.has_begun or self._call.options.carry_history else []
        if not turns and not self._extra and not self._system_texts():
            return instructions
        left = self._room(head)
        kept: list[str] = []
        for line in reversed(turns):
            left -= self._count(line) + 1
            if left < 0:
                break
            kept.insert(0, line)
        self.has_trimmed_history = len(kept) < len(turns)
        return "\n".join([*head, *kept])

    def _head(self, extra: Sequence[str]) -> list[str]:
        instructions = self._call.config.instructions
        base = self._call.catalogue.default_persona if instructions is None else instructions
        return [line for line in (base, *self._system_texts(), *extra) if line]

    def _system_texts(self) -> list[str]:
        return [_text(entry.item) for entry in self._call.conversation.entries() if entry.item.id in self._system_ids]

    def _turns(self) -> list[str]:
        lines = []
        for entry in self._call.conversation.entries()[-MAX_TURNS:]:
            item = entry.item
            text = entry.marks.transcript() if entry.marks is not None else _text(item)
            if text and item.role in ("user", "assistant") and item.status != "in_progress":
                lines.append(f"{'User' if item.role == 'user' else 'You said'}: {text}")
        return lines

    def _check_head(self, extra: Sequence[str], path: str) -> None:
        """Raise EventError where instructions, system items and these texts are more than a prompt may hold."""
        if self._room(self._head(extra)) < 0:
            limit = self._call.options.max_persona_tokens
            raise EventError("string_above_max_length", f"instructions and system text may have {limit} tokens in all", path)

    def _room(self, head: Sequence[str]) -> int:
        """Tokens that a prompt which begins so has left."""
        call, text = self._call, "\n".join(head)
        num_base = call.catalogue.prompt_rows(call.config.resolved_voice, "")
        return min(call.options.max_persona_tokens, call.catalogue.max_prompt_rows - num_base) - self._count(text)

    def _count(self, text: str) -> int:
        """Tokens of a text; more than any prompt may have where it is not worth counting."""
        call, voice = self._call, self._call.config.resolved_voice
        too_many = call.catalogue.max_prompt_rows + call.options.max_persona_tokens
        if len(text) > MAX_TOKEN_CHARS * call.options.max_persona_tokens:
            return too_many
        try:
            return call.catalogue.prompt_rows(voice, text) - call.catalogue.prompt_rows(voice, "")
        except ValueError:
            return too_many


def _text(item: Item) -> str:
    """The text of an item's parts."""
    return " ".join(part.text or part.transcript or "" for part in item.content or ()).strip()
