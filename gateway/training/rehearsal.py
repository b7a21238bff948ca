"""A trained model's own answers as a corpus: it says all that it can say in every voice, and its codes are kept beside the sound.

A small model learns a sentence by the codes of one recording. Another recording of it, even by the same synthesiser on another processor,
is strange to it (13 nats a code instead of less than 1); so training that goes on, on whatever machine, goes on with what the model says
itself: of some tries the one that Whisper reads best. The one rule: only what is written right, word for word, is kept. Thread: main.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gateway.engine.codec.config import MimiConfig
from gateway.engine.codec.weights import WeightFile
from gateway.engine.layout import SPECIAL_TEXT_IDS, LMConfig
from gateway.training import packing, sources
from gateway.training import persona as personas
from gateway.training.bank import SpeechBank
from gateway.training.codec_model import TrainedMimi
from gateway.training.corpus import OWN_CODES, SAMPLE_RATE, Clip, write_index
from gateway.training.dialogues import FRAME, Dialogue, DialogueMaker
from gateway.training.evaluation import asr
from gateway.training.grammar import Ask, asks, greeting, plain, replies, reply
from gateway.training.lm_batches import TAIL_FRAMES, Answers, Assembler, PromptMaker
from gateway.training.lm_model import TrainedLM
from gateway.training.rollout import complete, unstaggered
from gateway.training.voices import VoicePrompts

ROUNDS = 4  # tries for what was said wrong or is misheard, each with other questions
ROWS = 48  # of a batch
QUESTION_FRAMES = 40  # of the longest question that is asked, with the silence before it
FRAMES_A_WORD, MORE_FRAMES = 6, 24  # of an answer at most
MIN_DBFS = -55.0  # of a frame in which something is said


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """Something to say.

    Attributes:
        voice: who says it.
        text: what is said.
        cues: personas and questions to which it is the answer; no question where the assistant speaks first.
    """

    voice: str
    text: str
    cues: tuple[tuple[personas.Persona, Ask | None], ...]


def lines(voices: Sequence[str], seed: int) -> list[Line]:
    """Return all lines, short ones first; cues are drawn at random."""
    rng = random.Random(seed)
    found: dict[str, list[tuple[personas.Persona, Ask | None]]] = {text: [] for text in replies()}
    questions = asks()
    while min(map(len, found.values())) < ROUNDS:
        who = personas.draw(rng)
        found[greeting(who)].append((dataclasses.replace(who, greets_first=True), None))
        for ask in rng.sample(questions, 40) + [ask for ask in questions if ask.intent == "your_name"][:4]:
            found[reply(ask.intent, ask.slot, who)].append((dataclasses.replace(who, greets_first=False), ask))
    wanted = [Line(voice, text, tuple(rng.sample(cues, ROUNDS))) for text, cues in found.items() for voice in voices]
    return sorted(wanted, key=lambda line: len(line.text))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this stage's flags."""
    parser.add_argument("--users", type=Path, nargs="+", required=True, help="packed corpora; their users ask")
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder of the model")
    parser.add_argument("--prompts", type=Path, required=True, help="prompts.pt of the stage that trained it")
    parser.add_argument("--out", type=Path, required=True, help="folder of the packed corpus to write")
    parser.add_argument("--cache", type=Path, default=sources.DEFAULT_CACHE, help="folder of the downloads (default: %(default)s)")


def run(folder: Path, options: argparse.Namespace) -> None:
    """Write the corpus; lines that the model never said right are named and left out, and their questions are not asked in training.

    Raises:
        ImportError: faster-whisper is not installed.
        sources.SourceError: Whisper's weights cannot be had.
    """
    whisper = asr.Whisper(options.cache)
    stage = Stage(SpeechBank.load(options.users, torch.device("cpu")), options.checkpoint, options.prompts)

    def errors(answer: Said) -> float:
        return asr.word_error_rate(answer.line.text, whisper.read((answer.pcm / 32768).astype(np.float32)))

    wanted = lines(stage.voices, seed=1)
    said = best_of(stage.say, errors, wanted)
    for line in wanted:
        if line not in said:
            print(f"never said right: {line.voice}: {line.text}", file=sys.stderr)
    write(options.out, list(said.values()))


def best_of(
    say: Callable[[Sequence[Line], int], list[Said | None]], errors: Callable[[Said], float], wanted: Sequence[Line]
) -> dict[Line, Said]:
    """Return the best of up to ROUNDS sayings of each line, of those that are right; a line read without errors is not said again."""
    best: dict[Line, tuple[float, Said]] = {}
    for number in range(ROUNDS):
        missing = [line for line in wanted if line not in best or best[line][0] > 0]
        for first in range(0, len(missing), ROWS):
            for answer in say(missing[first : first + ROWS], number):
                if answer is not None and (found := errors(answer)) < best.get(answer.line, (np.inf,))[0]:
                    best[answer.line] = found, answer
        clear = sum(found == 0 for found, _ in best.values())
        print(f"round {number + 1}: {len(best)} of {len(wanted)} lines said, {clear} read without errors", file=sys.stderr, flush=True)
    return {line: best[line][1] for line in wanted if line in best}


@dataclasses.dataclass(frozen=True, slots=True)
class Said:
    """A line as the model said it, n frames.

    Attributes:
        line: which.
        pieces: first frame and text pieces of each run of words.
        codes: int16 [n + TAIL_FRAMES, CODEBOOKS].
        pcm: int16 [n * FRAME].
    """

    line: Line
    pieces: tuple[tuple[int, tuple[int, ...]], ...]
    codes: Tensor
    pcm: NDArray[np.int16]


class Stage:
    """A model, who asks it, and what it answers."""

    def __init__(self, users: SpeechBank, checkpoint: Path, prompts_file: Path) -> None:
        import sentencepiece

        file = str(checkpoint / "tokenizer.model")
        raw = json.loads((checkpoint / "config.json").read_text())
        self._config = LMConfig.from_json(raw)
        prompts = VoicePrompts.load(prompts_file, raw, self._config)
        self._lm = TrainedLM(self._config, prompts.profile.window)
        self._lm.load(checkpoint / "model.safetensors")
        codec = MimiConfig.from_json(json.loads((checkpoint / "mimi.json").read_text()))
        self._mimi = TrainedMimi(codec, WeightFile(checkpoint / "mimi.safetensors").take, torch.device("cpu"))
        self._users, self._prompts = users, prompts
        self._tokenizer = sentencepiece.SentencePieceProcessor(model_file=file)
        self._prompter = PromptMaker(self._tokenizer, prompts, self._config, seed=1)
        self._answers = Answers(users.restricted(0), self._mimi)
        self._rng = random.Random(1)
        self.voices = sorted(prompts.codes)

    def say(self, wanted: Sequence[Line], number: int) -> list[Said | None]:
        """Let the model say lines at their cue of this number; None where it said another."""
        longest = max(len(line.text.split()) for line in wanted)
        frames = QUESTION_FRAMES + FRAMES_A_WORD * longest + MORE_FRAMES
        maker = DialogueMaker(self._users.index, frames, seed=self._rng.randrange(2**31))
        dialogues = [self._cue(maker, line.voice, *line.cues[number], frames) for line in wanted]
        scripts = [self._prompter.script(dialogue, first_prompt=True) for dialogue in dialogues]
        sizes = [len(script.prompt) for script in scripts]
        length = max(sizes) + frames
        assembler = Assembler(self._users, self._mimi, self._config, self._prompts.profile.silence_codes, length, self._answers)
        starts = [max((p.at + int(p.length / p.rate)) // FRAME for p in d.placements) if d.placements else 0 for d in dialogues]
        firsts = torch.tensor(sizes) + torch.tensor(starts)
        rows = complete(self._lm, assembler(scripts, clean=True).rows, firsts)
        return [
            self._kept(line, own[first : size + frames])
            for line, own, first, size in zip(wanted, rows, firsts.tolist(), sizes, strict=True)
        ]

    def _cue(self, maker: DialogueMaker, voice: str, who: personas.Persona, ask: Ask | None, frames: int) -> Dialogue:
        """A conversation with this question and no answer."""
        if ask is None:
            return Dialogue.silent(who, voice, frames)
        clips = [i for i in self._users.index.asks.get(ask.text, ()) if self._users.index.clips[i].length < (QUESTION_FRAMES - 18) * FRAME]
        return maker.single(ask, self._rng.choice(clips), who, voice) if clips else Dialogue.silent(who, voice, frames)

    def _kept(self, line: Line, rows: Tensor) -> Said | None:
        """What was said in rows [T, ROW_WIDTH], if it is the line."""
        text = rows[:-1, 0]
        at = (text >= SPECIAL_TEXT_IDS).nonzero()[:, 0].tolist()
        if not at or plain(self._tokenizer.decode(text[at].tolist())) != plain(line.text):
            return None
        codes = unstaggered(rows)
        pcm = self._mimi.decode_codes(codes[None])[0]
        level = 10 * torch.log10(pcm.view(-1, FRAME).square().mean(dim=1) + 1e-12)
        loud = (level > MIN_DBFS).nonzero()[:, 0].tolist()
        if not loud or loud[-1] + TAIL_FRAMES >= len(codes):
            return None  # not over yet
        first, end = min(at[0], loud[0]), max(at[-1], loud[-1]) + 1
        pieces: list[tuple[int, tuple[int, ...]]] = []
        for place in at:
            piece = (int(text[place]),)
            if pieces and pieces[-1][0] + len(pieces[-1][1]) + first == place:
                pieces[-1] = pieces[-1][0], pieces[-1][1] + piece
            else:
                pieces.append((place - first, piece))
        sound = (pcm[first * FRAME : end * FRAME] * 32767).clamp(-32768, 32767).short().numpy()
        return Said(line, tuple(pieces), codes[first : end + TAIL_FRAMES].short(), sound)


def write(out: Path, said: Sequence[Said]) -> None:
    """Write a packed corpus with OWN_CODES beside it."""
    out.mkdir(parents=True, exist_ok=True)
    clips = []
    for answer in said:
        words = tuple((frame * FRAME, "", pieces) for frame, pieces in answer.pieces)
        clips.append((Clip("assistant", answer.line.voice, answer.line.text, words, ()), answer.pcm))
    write_index(out, packing.write_shards(out, clips))
    torch.save({f"{answer.line.voice} {answer.line.text}": answer.codes for answer in said}, out / OWN_CODES)
    print(f"{out}: {len(said)} clips, {sum(len(answer.pcm) for answer in said) / SAMPLE_RATE / 3600:.2f} h", file=sys.stderr)
