"""Voice activity of all callers by a small neural network: Silero's, run by ONNX runtime on a thread of its own.

The event loop only queues frames and takes results. Neither torch nor the silero_vad package is imported: its weights are all that is
used. The rule: every frame that was fed gets one result, in order. A worker that falls behind makes results late and never loses one, and
no result waits for another caller's frame: a round judges what is there, in one call of the network for all callers. Audio is not kept.
Thread: loop, but for what is marked as the worker's.

The network looks at windows of 32 ms at 16 kHz, so 2 or 3 of them end in a frame of 80 ms. The highest of them counts: a frame in which
speech begins or ends is one with speech in it, and how many such frames make a turn is the turn policy's business. But the network finds
speech at any level: in the model's own echo at -30 dB, and in the talk at the next table. So a frame's result is the lower of two: the
network's probability, and the caller's loudness in this frame or one of the two before (the quiet end of a word is speech as well).

Measured, share of the frames at 0.5 and above (speech at -26 dBFS: six voices of espeak-ng, frames down to 25 dB below the loudest; echo:
of the bundled model, median -26 dBFS):

    sound                                    network    with the level
    speech; the same at -36 dBFS              100 %     100 %; 99 %
    speech, babble 10 dB below                100 %      98 %
    speech, a street 10 dB below               99 %      98 %
    speech, white noise 10 dB below            99 %      93 %; of a telephone call with much quiet speech 58 %, its pauses none
    babble alone                              100 %      15 % after the first 2 s, 0.8 s at a time at most
    echo at -20, -30, -40 dB              17, 15, 0 %    5, 0, 0 %
    silence, hum, white and pink noise,         0 %       0 %, the network gives 0.21 at most
    street, keyboard, music

source: snakers4/silero-vad v6.2.3, src/silero_vad/utils_vad.py, OnnxWrapper (window, context, state)
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gateway.errors import ConfigError
from protocols.audio import Pcm
from protocols.realtime.audio import Resampler
from protocols.realtime.detector import Activity, Loudness, SpeechDetector

logger = logging.getLogger(__name__)

RATE = 16_000  # Hz, the network's
WINDOW_SAMPLES = 512  # 32 ms
CONTEXT_SAMPLES = 64  # the end of the window before, in front of each window
STATE_SHAPE = (2, 128)  # of one caller
LOUD_FRAMES = 3  # 240 ms: a frame is loud enough when it or one of the two before is
ROUND_FRAMES = 25  # 2 s: so much of one caller's backlog is judged at a time, because the others wait meanwhile

_INSTALL = "pip install onnxruntime, then pip install --no-deps silero-vad"


class _Frame(NamedTuple):
    frame_idx: int
    pcm: Pcm


class VoiceActivity:
    """The network and its worker: one in a process.

    Attributes:
        failed: the network raised; the log says why. From then on no frame counts as speech, and the calls go on.
    """

    def __init__(self, sample_rate: int) -> None:
        """Load the network; `sample_rate` is the engine's. The worker starts with the first stream: who loads and goes leaves no thread.

        Raises:
            ConfigError: ONNX runtime or the weights are not installed.
        """
        self.failed = False
        self._sample_rate = sample_rate
        self._network = _load_network()
        self._changed = threading.Condition()  # the lock of the next two and of every stream's queue
        self._waiting: dict[_Stream, None] = {}  # streams whose queue is not empty, longest waiting first
        self._is_stopped = False
        self._worker = threading.Thread(target=self._work, name="voice-activity", daemon=True)

    # Public

    def stream(self, wake: Callable[[], None]) -> SpeechDetector:
        """Return the detector of one caller; `wake` is called on the running loop when it has results."""
        if self._worker.ident is None and not self._is_stopped:
            self._worker.start()
        return _Stream(self, wake, _Row(self._sample_rate))

    def stop(self) -> None:
        """End the worker; what is still queued is not judged any more."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify()
        if self._worker.ident is not None:
            self._worker.join()

    # Private: `submit` and `forget` are the streams'

    def submit(self, stream: _Stream, frame: _Frame) -> None:
        with self._changed:
            stream.queue.append(frame)
            self._waiting[stream] = None
            self._changed.notify()

    def forget(self, stream: _Stream) -> None:
        with self._changed:
            stream.queue.clear()
            self._waiting.pop(stream, None)

    def _work(self) -> None:
        # Thread: worker, as all that follows.
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_stopped)
                if self._is_stopped:
                    return
                taken = {stream: stream.dequeue() for stream in self._waiting}
                self._waiting = {stream: None for stream in self._waiting if stream.queue}
            results = self._judge([stream.row for stream in taken], list(taken.values()))
            for (stream, frames), probabilities in zip(taken.items(), results, strict=True):
                stream.publish([Activity(frame.frame_idx, value) for frame, value in zip(frames, probabilities, strict=True)])

    def _judge(self, rows: Sequence[_Row], frames: Sequence[Sequence[_Frame]]) -> list[list[float]]:
        """Return each row's probabilities, one for each frame. The top of the worker: what the network raises ends here."""
        if not self.failed:
            try:
                return self._run(rows, frames)
            except Exception:
                self.failed = True
                logger.exception("voice activity failed: no speech is found any more, until the gateway is restarted")
        return [[0.0] * len(row_frames) for row_frames in frames]

    def _run(self, rows: Sequence[_Row], frames: Sequence[Sequence[_Frame]]) -> list[list[float]]:
        cuts = [row.cut(row_frames) for row, row_frames in zip(rows, frames, strict=True)]
        found: list[list[float]] = [[] for _ in rows]  # by window
        for window_idx in range(max(len(cut.windows) for cut in cuts)):
            active = [idx for idx, cut in enumerate(cuts) if window_idx < len(cut.windows)]
            inputs = {
                "input": np.stack([cuts[idx].windows[window_idx] for idx in active]),
                "state": np.stack([rows[idx].state for idx in active], axis=1),
                "sr": np.array(RATE, np.int64),
            }
            probabilities, states = self._network.run(None, inputs)
            for place, idx in enumerate(active):
                rows[idx].state = states[:, place]
                found[idx].append(float(probabilities[place, 0]))
        return [row.per_frame(cut, values) for row, cut, values in zip(rows, cuts, found, strict=True)]


class _Stream:
    """One caller's SpeechDetector: the queues between the loop and the worker."""

    def __init__(self, owner: VoiceActivity, wake: Callable[[], None], row: _Row) -> None:
        self.row = row
        self.queue: deque[_Frame] = deque()  # under the owner's lock
        self._owner = owner
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._results: deque[Activity] = deque()
        self._is_closed = False

    def feed(self, frame_idx: int, pcm: Pcm) -> None:
        """Queue a frame."""
        self._owner.submit(self, _Frame(frame_idx, pcm))

    def take(self) -> list[Activity]:
        """Return the results that are there."""
        return [self._results.popleft() for _ in range(len(self._results))]

    def close(self) -> None:
        """Drop what waits; `wake` is not called any more."""
        self._is_closed = True
        self._owner.forget(self)

    def dequeue(self) -> list[_Frame]:
        """Take the oldest frames, under the owner's lock. Thread: worker."""
        return [self.queue.popleft() for _ in range(min(len(self.queue), ROUND_FRAMES))]

    def publish(self, results: list[Activity]) -> None:
        """Hand results to the loop. Thread: worker."""
        self._results.extend(results)
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
            self._loop.call_soon_threadsafe(self._notify)

    def _notify(self) -> None:
        if not self._is_closed:
            self._wake()


class _Cut(NamedTuple):
    windows: NDArray[np.float32]  # float32 [W, CONTEXT_SAMPLES + WINDOW_SAMPLES]
    ends: list[int]  # by frame: number of those windows that have ended by its end
    loudness: list[float]  # by frame: the highest probability that its level allows


class _Row:
    """What the network needs of one caller. Thread: worker."""

    def __init__(self, sample_rate: int) -> None:
        self.state = np.zeros(STATE_SHAPE, np.float32)
        self._resampler = Resampler(sample_rate, RATE)
        self._rest = np.zeros(CONTEXT_SAMPLES, np.float32)  # the next window's context, then what there is of it
        self._last = 0.0  # the last window's probability
        self._loudness = Loudness()
        self._recent: deque[float] = deque(maxlen=LOUD_FRAMES)

    def cut(self, frames: Sequence[_Frame]) -> _Cut:
        """Return the windows that end in these frames."""
        chunks = [self._rest, *(self._resampler.push(frame.pcm) for frame in frames)]
        num_samples = np.cumsum([chunk.size for chunk in chunks])[1:] - CONTEXT_SAMPLES
        ends = (num_samples // WINDOW_SAMPLES).tolist()
        samples = np.concatenate(chunks)
        starts = range(0, ends[-1] * WINDOW_SAMPLES, WINDOW_SAMPLES)  # window w is [start, start + CONTEXT + WINDOW) of samples
        windows = [samples[start : start + CONTEXT_SAMPLES + WINDOW_SAMPLES] for start in starts]
        self._rest = samples[ends[-1] * WINDOW_SAMPLES :].copy()
        return _Cut(np.array(windows, np.float32), ends, [self._loud(frame.pcm) for frame in frames])

    def per_frame(self, cut: _Cut, values: Sequence[float]) -> list[float]:
        """Return each frame's probability; a frame in which no window ended (it is short) is judged by the window before."""
        results, begin = [], 0
        for end, loudness in zip(cut.ends, cut.loudness, strict=True):
            results.append(min(max(values[begin:end], default=self._last), loudness))
            self._last = values[end - 1] if end > begin else self._last
            begin = end
        return results

    def _loud(self, pcm: Pcm) -> float:
        self._recent.append(self._loudness.take(pcm))
        return max(self._recent)


def _load_network() -> Any:
    """Return the ONNX session.

    Raises:
        ConfigError: ONNX runtime or the weights are not installed.
    """
    package = importlib.util.find_spec("silero_vad")  # found, not imported: its __init__ imports torch
    if package is None or not package.submodule_search_locations:
        raise ConfigError(f"voice activity needs the weights of silero-vad: {_INSTALL}")
    path = Path(package.submodule_search_locations[0], "data", "silero_vad.onnx")
    if not path.is_file():
        raise ConfigError(f"voice activity needs silero-vad 5 or 6, which has data/{path.name}: {_INSTALL}")
    try:
        import onnxruntime
    except ImportError as error:
        raise ConfigError(f"voice activity needs onnxruntime ({error}): {_INSTALL}") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # a call takes 0.1 ms a row; a pool would only wait
    options.log_severity_level = 3  # errors
    network = onnxruntime.InferenceSession(str(path), sess_options=options, providers=["CPUExecutionProvider"])
    if [entry.name for entry in network.get_inputs()] != ["input", "state", "sr"]:
        raise ConfigError(f"voice activity needs silero-vad 5 or 6: {_INSTALL}")
    return network
