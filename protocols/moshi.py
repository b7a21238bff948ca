"""The tagged binary wire of `/api/chat`: the official Moshi and PersonaPlex clients. No Ogg page is looked at here.

The rule: every client that was seen in the wild is accepted, and exactly one dialect is sent. Section numbers are those of
specs/moshi-protocol.md. Thread: any, one at a time.

Wire. Every WebSocket message is binary: one tag byte, then the payload. "Live" is from our `00` on.

    tag  payload                       direction  legal
    00   none                          S -> C     once, when live audio can be consumed
    01   piece of one Ogg-Opus stream  C -> S     always; the session drops what comes before live (3.2)
    01   OpusHead, OpusTags, audio     S -> C     live; whole pages, one message per frame, headers in the first (4.4)
    02   UTF-8 text                    S -> C     live; and once before the end of a call that failed
    04   JSON metadata                 S -> C     once, right before 00 (7)
    05   UTF-8 text                    S -> C     from the upgrade to the end: warnings, refusals, the reason of a failure
    06   none                          S -> C     live, when nothing else was sent for 4 s (9)
    00, 02-06, other tags, empty and text messages   C -> S   always; ignored (2 rule 2)

    03, 07, 08 and 09 are never sent: web clients throw on them.

Dialects (sources: kyutai-labs/moshi@e6a55d2, NVIDIA/personaplex client/src, snapshot of 2026-03-02).

    point             who differs                                         accepted       sent
    handshake         Python server: 00; Rust servers: 00 + 8 zero bytes  -              00
    first audio       web: after 00; Python, gradio, Rust: at once        both           after 00
    audio message     web: a 40 ms page; Python: two; gradio: often none  any piece      two 40 ms pages, one 80 ms frame
    query             PersonaPlex web: 11; Kyutai web: 9-11; others: none any subset     -
    bad number        Rust: HTTP 400; Python: never looks                 refused, 05    -
    unknown tag       Rust: closes; web: throws; Python: prints           ignored        none
    queue position    nobody has one; 06 before 00 is new to all clients  -              nothing
    05                web: shows nothing; Python: prints a warning        ignored        yes; a failure also as 02, which all show
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from typing import ClassVar

from protocols import params
from protocols.codec import Close, CodecState, Message, check_legal, ending_in_error
from protocols.errors import CloseCode, ErrorKind
from protocols.events import (
    AudioIn,
    AudioOut,
    ClientEvent,
    Ended,
    EndReason,
    Failed,
    Open,
    Pacing,
    Queued,
    Ready,
    Rejected,
    ServerEvent,
    TextDelta,
    Warned,
)
from protocols.opus import DEFAULT_COMPLEXITY, OggOpusReader, OggOpusWriter

MAX_MESSAGE_BYTES = 4 * 1024 * 1024  # the limit of the reference servers (aiohttp's default); larger is refused with 1009
KEEP_ALIVE_S = 4.0  # web clients hang up after 10 s without a message (9)
# The official PersonaPlex page begins to listen for 02 and 05 with a rendering after its socket has opened, and shows nothing of what
# comes at once; measured in headless Chromium: sent 0.3 to 0.5 s after the upgrade it is shown.
REFUSAL_DELAY_S = 0.4

HANDSHAKE, AUDIO, TEXT, METADATA, ERROR, PING = b"\x00", b"\x01", b"\x02", b"\x04", b"\x05", b"\x06"

_END_REASONS = {
    EndReason.CALLER: "the caller hung up",
    EndReason.FINISHED: "everything was answered",
    EndReason.LIMIT: "the length limit of the call was reached",
}
_ALWAYS_LEGAL = (Warned, Rejected, Ended, Failed)
_LEGAL: Mapping[CodecState, tuple[type, ...]] = {
    CodecState.OPENING: (Failed,),
    CodecState.WAITING: (Queued, Ready, *_ALWAYS_LEGAL),
    CodecState.LIVE: (AudioOut, TextDelta, *_ALWAYS_LEGAL),
    CodecState.ERROR: (Failed,),  # the wording of what `connect` or `receive` raised
    CodecState.CLOSED: (),
}


class MoshiCodec:
    """One `/api/chat` connection. Nothing of libopus is made before it is needed: a refused caller costs none."""

    name: ClassVar[str] = "moshi"
    refusal_delay_s: ClassVar[float] = REFUSAL_DELAY_S

    def __init__(self, *, sample_rate: int = 24_000, opus_complexity: int = DEFAULT_COMPLEXITY, opus_bitrate: int | None = None) -> None:
        self.state = CodecState.OPENING
        self._make_writer = functools.partial(OggOpusWriter, sample_rate, complexity=opus_complexity, bitrate=opus_bitrate)
        self._writer: OggOpusWriter | None = None
        self._sample_rate = sample_rate
        self._reader: OggOpusReader | None = None
        self._last_sent_s = 0.0

    def connect(self, query: Mapping[str, str]) -> list[ClientEvent]:
        """Take the query of the upgrade request; `receive` comes next.

        Raises:
            RemoteProtocolError: BAD_PARAMETER; word it with `send(Failed(...))`.
        """
        with ending_in_error(self):
            numbers = params.query_numbers(query)
            opening = Open(
                voice_prompt=params.voice_name(query.get("voice_prompt")),
                persona=params.persona_text(query.get("text_prompt")),
                sampling=params.sampling_options(params.sampling_fields(numbers)),
                pacing=Pacing.LIVE,
                max_frames=params.max_frames(numbers),
            )
        self.state = CodecState.WAITING
        return [opening]

    def receive(self, message: bytes | str, now: float) -> list[ClientEvent]:
        """Take one WebSocket message; returns at most one AudioIn.

        Raises:
            RemoteProtocolError: BAD_AUDIO, beyond the error budget; word it with `send(Failed(...))`.
        """
        if isinstance(message, str) or message[:1] != AUDIO or self.state in (CodecState.CLOSED, CodecState.ERROR):
            return []
        with ending_in_error(self):
            if self._reader is None:
                self._reader = OggOpusReader(self._sample_rate)
            pcm = self._reader.feed(message[1:], now)
        return [AudioIn(pcm=pcm)] if pcm.size else []

    def send(self, event: ServerEvent, now: float) -> list[Message]:
        """Word one event. `Failed` is legal in every state but CLOSED, and is the only one that is in ERROR.

        Raises:
            LocalProtocolError: the event is illegal in this state.
        """
        check_legal(self, event, _LEGAL)
        messages = self._word(event)
        if messages:
            self._last_sent_s = now
        return messages

    @property
    def due_s(self) -> float:
        """When the next ping is due; math.inf while none will be."""
        return self._last_sent_s + KEEP_ALIVE_S if self.state is CodecState.LIVE else math.inf

    def due(self, now: float) -> list[Message | ClientEvent]:
        """Return the ping that is due at `now`, if one is."""
        if now < self.due_s:
            return []
        self._last_sent_s = now
        return [PING]

    def faults(self) -> Mapping[str, int]:
        """Broken pages and packets, packets of messages with too much audio, bytes outside of pages."""
        reader = self._reader
        if reader is None:
            return {}
        found = {"errors": reader.errors, "dropped packets": reader.dropped_packets, "discarded bytes": reader.discarded_bytes}
        return {name: count for name, count in found.items() if count}

    # -- Private ---------------------------------------------------------------------------------------------------------------------

    def _word(self, event: ServerEvent) -> list[Message]:
        match event:
            case AudioOut():
                if self._writer is None:
                    self._writer = self._make_writer()
                pages = self._writer.encode(event.pcm)
                return [AUDIO + pages] if pages else []
            case TextDelta():
                return [TEXT + event.text.encode()] if event.text else []
            case Ready():
                self.state = CodecState.LIVE
                return [METADATA + _metadata(event), HANDSHAKE]
            case Warned() | Rejected():
                return [ERROR + event.detail.encode()]
            case Ended():
                self.state = CodecState.CLOSED
                return [Close(CloseCode.NORMAL, event.detail or _END_REASONS[event.reason])]
            case Failed():
                self.state = CodecState.CLOSED
                detail = "internal error" if event.kind is ErrorKind.INTERNAL else event.detail
                # "Additionally MAY send a short 02 text because the web UI shows only text" (8)
                return [ERROR + detail.encode(), TEXT + f" [{detail}]".encode(), Close(event.kind.close_code, detail)]
            case _:  # Queued: nothing that every client tolerates before 00 could say it
                return []


def _metadata(ready: Ready) -> bytes:
    """Every field that the web clients' schema demands (7), then ours, which they drop."""
    sampling = ready.sampling
    build_info = (
        "build_timestamp", "build_date", "git_branch", "git_timestamp", "git_date", "git_hash", "git_describe", "rustc_host_triple",
        "rustc_version", "cargo_target_triple",
    )  # fmt: skip
    metadata = {
        "text_temperature": sampling.text_temperature,
        "text_topk": sampling.text_topk,
        "audio_temperature": sampling.audio_temperature,
        "audio_topk": sampling.audio_topk,
        "pad_mult": sampling.pad_mult,
        "repetition_penalty_context": sampling.repetition_penalty_context,
        "repetition_penalty": sampling.repetition_penalty,
        "lm_model_file": ready.model,
        "mimi_model_file": ready.model,
        "instance_name": "duplex-gateway",
        "build_info": dict.fromkeys(build_info, "-"),
        "session_id": ready.session_id,
        "voice_prompt": ready.voice_prompt,
        "text_seed": sampling.text_seed,
        "audio_seed": sampling.audio_seed,
    }
    return json.dumps(metadata, ensure_ascii=False).encode()
