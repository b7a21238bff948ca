"""Made-up conversations: what is said follows from what was heard, and lies where the sound lies."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gateway.training import persona as personas
from gateway.training.bank import Index, SpeechBank, make_index
from gateway.training.corpus import SAMPLE_RATE, Clip
from gateway.training.dialogues import (
    EPAD,
    FRAME,
    LATE_S,
    LATENCY_S,
    OVERLAP_FRAMES,
    PAD,
    YIELD_S,
    DialogueMaker,
    intent_classes,
    lay_out,
)  # fmt: skip
from gateway.training.grammar import asks, greeting, intent_of, plain, replies, reply
from gateway.training.lm_batches import LEAD_FRAMES, Answers
from gateway.training.mixing import SUBFRAMES, render

VOICES = ("one", "two")
FRAMES = 300


def make_clips() -> list[Clip]:
    """A clip for every text: 0.3 s a word, one piece a word."""
    texts = [("user", "somebody", ask.text) for ask in asks()]
    texts += [("assistant", voice, text) for voice in VOICES for text in replies()]
    clips, at = [], 0
    for role, speaker, text in texts:
        spoken = text.split()
        words = tuple((7200 * i, word, (4 + i % 500,) if role == "assistant" else ()) for i, word in enumerate(spoken))
        length = 7200 * len(spoken)
        clips.append(Clip(role, speaker, text, words, ((0, 1 + len(clips) % 39),), 0, at, length))  # type: ignore[arg-type]
        at += length + 2400
    return clips


@pytest.fixture(scope="module")
def index() -> Index:
    return make_index(make_clips())


@pytest.mark.parametrize("seed", range(40))
def test_every_answer_follows_from_the_last_question_and_the_persona(index: Index, seed: int) -> None:
    dialogue = DialogueMaker(index, FRAMES, seed).draw()
    by_start = {clip.start: clip for clip in index.clips}
    clips = index.clips
    events = sorted(dialogue.placements, key=lambda p: (p.at, not p.is_user))
    for place, placement in enumerate(events):
        if placement.is_user:
            continue
        answer = by_start[placement.start]
        assert answer.speaker == dialogue.voice
        heard = [p for p in events[:place] if p.is_user]
        wanted = {plain(greeting(dialogue.persona))} if dialogue.persona.greets_first and not heard else set()
        for question in heard[-2:]:  # a backchannel or the second half of a question may stand between
            clip = next(c for c in clips if c.start <= question.start < c.start + c.length)
            if plain(clip.text) in {plain(ask.text) for ask in asks()}:
                wanted.add(plain(reply(*intent_of(clip.text), dialogue.persona)))
        assert plain(answer.text) in wanted
        assert placement.at % FRAME == 0
        ends = [p.at + int(p.length / p.rate) for p in heard]
        if ends:
            assert min(abs(placement.at - end) for end in ends) < (LATENCY_S[1] + 0.1) * SAMPLE_RATE + FRAME


def test_words_stand_where_they_begin_with_the_end_of_padding_before_them() -> None:
    text = np.full(12, PAD)
    lay_out(text, 2 * FRAME, [(0, (10, 11)), (int(1.5 * FRAME), (12,)), (6 * FRAME, (13, 14, 15, 16))])
    assert text.tolist() == [PAD, EPAD, 10, 11, 12, PAD, PAD, EPAD, 13, 14, 15, 16]


def test_conversations_stay_inside_their_frames_and_differ(index: Index) -> None:
    made = [DialogueMaker(index, FRAMES, seed).draw() for seed in range(20)]
    for dialogue in made:
        for p in dialogue.placements:
            assert 0 <= p.at <= p.at + int(p.length / p.rate) <= FRAMES * FRAME
        assert ((dialogue.text != PAD) <= (dialogue.speaking | np.roll(dialogue.speaking, -1))).all()
    assert len({d.persona for d in made}) > 5
    quiet = sum(not d.placements for d in (DialogueMaker(index, 50, seed).draw() for seed in range(300)))
    assert 0 < quiet < 60


def test_long_answers_are_mostly_interrupted_and_nearly_all_stop_after_the_same_time(index: Index) -> None:
    by_start = {clip.start: clip for clip in index.clips}
    stops_s: list[float] = []
    interrupted: list[bool] = []
    for seed in range(150):
        dialogue = DialogueMaker(index, FRAMES, seed).draw()
        for answer in (p for p in dialogue.placements if not p.is_user):
            whole_s = by_start[answer.start].length / SAMPLE_RATE
            barges = [p.at for p in dialogue.placements if p.is_user and answer.at < p.at < answer.at + whole_s * SAMPLE_RATE]
            if max([answer.at + whole_s * SAMPLE_RATE, *barges]) + 2 * SAMPLE_RATE > FRAMES * FRAME:
                continue  # cut by the end of the conversation
            if whole_s > 4.5:
                interrupted.append(bool(barges))
            for at in barges[:1]:
                assert dialogue.overlap[at // FRAME : at // FRAME + OVERLAP_FRAMES].all()
                if answer.length < whole_s * SAMPLE_RATE:
                    stops_s.append((answer.at + answer.length - at) / SAMPLE_RATE)
    assert len(stops_s) > 40
    assert 0.5 < np.mean(interrupted) < 0.9
    assert max(stops_s) <= LATE_S[1]
    assert np.mean([YIELD_S[0] <= stop <= YIELD_S[1] for stop in stops_s]) > 0.8


def test_nobody_overlaps_where_nobody_is_interrupted(index: Index) -> None:
    for seed in range(60):
        dialogue = DialogueMaker(index, FRAMES, seed).draw()
        users = [p.at // FRAME for p in dialogue.placements if p.is_user]
        for frame in np.flatnonzero(np.diff(dialogue.overlap.astype(int), prepend=0) == 1):
            assert frame in users
            assert dialogue.speaking[frame]


def test_held_out_personas_never_appear(index: Index) -> None:
    assert not any(DialogueMaker(index, 20, seed).draw().persona in personas.HELD_OUT for seed in range(300))


def make_bank(index: Index) -> SpeechBank:
    last = max(clip.start + clip.length for clip in index.clips)
    samples = torch.zeros(last + 4800, dtype=torch.int16)
    for i, clip in enumerate(index.clips):
        samples[clip.start : clip.start + clip.length] = 1000 + i
    phones, words = (torch.zeros(len(samples) // 240 + 1, dtype=kind) for kind in (torch.uint8, torch.int16))
    for i, clip in enumerate(index.clips):
        phones[clip.start // 240 : (clip.start + clip.length) // 240] = clip.phones[0][1]
        words[clip.start // 240 : (clip.start + clip.length) // 240] = 1 + i
    return SpeechBank(index, samples, phones, words)


def test_sound_and_tracks_lie_where_the_script_says(index: Index) -> None:
    bank, maker = make_bank(index), DialogueMaker(index, FRAMES, 5)
    dialogues = [maker.draw() for _ in range(6)]
    batch = render(bank, dialogues, FRAMES)
    for row, dialogue in enumerate(dialogues):
        mine = {True: batch.user[row], False: batch.assistant[row]}
        for p in dialogue.placements:
            clip = next(i for i, c in enumerate(index.clips) if c.start <= p.start < c.start + c.length)
            middle = p.at + int(p.length / p.rate) // 2
            others = [q for q in dialogue.placements if q is not p and q.is_user == p.is_user and q.at <= middle < q.at + q.length / q.rate]
            if others or p.length < 2400:
                continue
            assert float(mine[p.is_user][middle]) == pytest.approx((1000 + clip) / 32768 * p.gain, rel=1e-3)
            assert int(batch.phones[row, 0 if p.is_user else 1].flatten()[middle * SUBFRAMES // FRAME]) == index.clips[clip].phones[0][1]
        silent = torch.ones(FRAMES * FRAME, dtype=torch.bool)
        for p in dialogue.placements:
            if p.is_user:
                silent[p.at : p.at + int(p.length / p.rate)] = False
        assert not mine[True][silent].any()


def test_answers_are_copies_of_the_clips_codes_cut_where_the_speech_was_cut(index: Index) -> None:
    class Counting:
        """A codec whose codes count the frames of a recording."""

        device = torch.device("cpu")

        def encode_codes(self, pcm: torch.Tensor) -> torch.Tensor:
            frames = pcm.shape[1] // FRAME
            return torch.arange(frames).view(1, -1, 1).expand(len(pcm), -1, 8)

    bank, maker = make_bank(index), DialogueMaker(index, FRAMES, 5)
    dialogues = [maker.draw() for _ in range(6)]
    codes = Answers(bank, Counting()).lay(dialogues, torch.full((8,), 99), FRAMES)  # type: ignore[arg-type]
    for row, dialogue in enumerate(dialogues):
        spoken = np.zeros(FRAMES, dtype=bool)
        for p in dialogue.placements:
            if not p.is_user:
                first, count = p.at // FRAME, p.length // FRAME
                assert codes[row, first : first + count, 0].tolist() == list(range(LEAD_FRAMES, LEAD_FRAMES + count))
                spoken[first : first + count + 3] = True
        assert (codes[row, ~torch.from_numpy(spoken)] == 99).all()


def test_every_question_has_its_class() -> None:
    classes = intent_classes()
    assert sorted(classes.values()) == list(range(1, len(classes) + 1))
    assert all((ask.intent, ask.slot) in classes for ask in asks())
