"""How the assistant's voices sound, and telling them apart.

The table was measured with `signals` on the assistant's recordings of the training corpus (first take, at least a second voiced), so it
knows nothing of the codec or the model; `python -m gateway.training.evaluation.voices FOLDER` measures it again from the recordings of
`speech`. The one rule: pitch and colour are judged together, because the two men have nearly the same pitch. Thread: any.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import numpy as np

from gateway.training.evaluation.signals import Pcm, colour, pitch_hz

MIN_VOICED_S = 0.5  # less says nothing about a voice
PITCH_RANGE = 0.2  # how far a pitch may lie from the voice's


@dataclasses.dataclass(frozen=True, slots=True)
class Reference:
    """One voice: median pitch in Hz and mean cepstrum (`signals.colour`)."""

    pitch_hz: float
    colour: tuple[float, ...]


REFERENCES: dict[str, Reference] = {
    "af_heart": Reference(191.9, (1.238, 0.189, 0.33, -0.074, 0.057, -0.045, 0.142, -0.021, -0.037, -0.024, -0.001, 0.021)),
    "am_michael": Reference(109.3, (0.932, 0.397, 0.326, 0.152, -0.116, 0.158, -0.191, 0.056, -0.073, 0.131, 0.045, -0.02)),
    "bf_emma": Reference(180.4, (0.742, 0.23, 0.562, -0.063, 0.12, -0.199, -0.178, 0.026, -0.016, 0.232, -0.15, 0.254)),
    "am_adam": Reference(115.3, (1.161, 0.171, 0.456, 0.1, 0.062, -0.132, -0.002, -0.124, 0.021, -0.018, 0.042, -0.036)),
}  # fmt: skip
# Standard deviation between recordings of one voice: pitch in octaves, then the cepstrum.
SPREAD = (0.0475, 0.0802, 0.0425, 0.0325, 0.024, 0.0191, 0.0186, 0.0184, 0.0162, 0.0142, 0.0143, 0.0134, 0.014)


@dataclasses.dataclass(frozen=True, slots=True)
class Heard:
    """The voice of an answer.

    Attributes:
        pitch_hz: its median pitch.
        has_pitch: the pitch is within PITCH_RANGE of that of the voice that was asked for.
        nearest: the voice it is most like.
    """

    pitch_hz: float
    has_pitch: bool
    nearest: str


def judge(pcm: Pcm, voice: str) -> Heard | None:
    """Compare speech with the voice that was asked for; None if too little is voiced, or the voice is not in the table."""
    pitch, voiced_s = pitch_hz(pcm)
    if voiced_s < MIN_VOICED_S or voice not in REFERENCES:
        return None
    features = np.array([np.log2(pitch), *colour(pcm)])
    distances = {
        name: float(np.sum(np.square((features - [np.log2(known.pitch_hz), *known.colour]) / SPREAD))) for name, known in REFERENCES.items()
    }
    return Heard(pitch, abs(pitch / REFERENCES[voice].pitch_hz - 1) <= PITCH_RANGE, min(distances, key=distances.__getitem__))


def measure(recordings: dict[str, list[Pcm]]) -> tuple[dict[str, Reference], tuple[float, ...]]:
    """Measure voices from their recordings: the table, and how far recordings of one voice lie apart (octaves, then cepstra)."""
    references, variances = {}, []
    for voice, pcms in recordings.items():
        pitched = ((pcm, *pitch_hz(pcm)) for pcm in pcms)
        rows = np.array([[np.log2(pitch), *colour(pcm)] for pcm, pitch, voiced_s in pitched if voiced_s >= 2 * MIN_VOICED_S])
        centre = rows.mean(axis=0)
        references[voice] = Reference(round(float(2 ** centre[0]), 1), tuple(round(float(term), 3) for term in centre[1:]))
        variances.append(rows.var(axis=0))
    return references, tuple(round(float(term), 4) for term in np.sqrt(np.mean(variances, axis=0)))


def main(argv: list[str] | None = None) -> None:
    """Print the table, measured from the recordings of the stage `speech`."""
    import soundfile

    from gateway.training import speech

    parser = argparse.ArgumentParser(prog="python -m gateway.training.evaluation.voices", description=main.__doc__)
    parser.add_argument("folder", type=Path, help="folder of the recordings")
    folder = parser.parse_args(argv).folder
    recordings: dict[str, list[Pcm]] = {voice: [] for voice in speech.ASSISTANTS}
    for take in speech.plan():
        if take.role == "assistant" and take.speed == speech.TAKE_SPEEDS[0] and take.path(folder).exists():
            recordings[take.speaker].append(soundfile.read(take.path(folder), dtype="float32")[0])
    references, spread = measure(recordings)
    print("REFERENCES: dict[str, Reference] = {")
    for voice, reference in references.items():
        print(f'    "{voice}": Reference({reference.pitch_hz}, {reference.colour}),')
    print("}  # fmt: skip")
    print(f"SPREAD = {spread}")


if __name__ == "__main__":
    main()
