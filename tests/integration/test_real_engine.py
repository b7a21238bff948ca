"""One gateway process with the real engine and the tiny model, and everything a newcomer may do to it. SIGTERM comes last: it ends it."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlencode

import aiohttp
import numpy as np
import pytest

from examples.wav import RATE, read_wav, write_wav
from tests.helpers import rms
from tests.integration.real import FRAME, PATHS, ROOT, Call, ChatCall, Pcm, RealGateway, converse, hello, running
from tests.integration.rig import own_environ, read_chat

NUM_SLOTS = 4
FREED_S = 1.0  # after a hang-up (specs/moshi-protocol.md section 14, item 6)
PCM_TOLERANCE = 1e-4  # -80 dB: float32 sums in another order, because the batch has another size
# The query of the PersonaPlex web client (specs/moshi-protocol.md section 5), with an end to randomness.
WEB_QUERY = (
    "text_temperature=0.7&text_topk=25&audio_temperature=0.8&audio_topk=250&pad_mult=0&text_seed=482113&audio_seed=90211"
    "&repetition_penalty_context=64&repetition_penalty=1&text_prompt=You+enjoy+having+a+good+conversation.&voice_prompt=NATF0.pt"
)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealGateway]:
    log = tmp_path_factory.mktemp("gateway") / "log.txt"
    queues = ("--inbox-frames", "100", "--outbox-frames", "100")  # so that nothing is dropped though the machine has other things to do
    yield from running(log, "--batch-size", str(NUM_SLOTS), "--drain-seconds", "0.5", *queues)


@pytest.fixture
async def gateway(process: RealGateway) -> AsyncIterator[RealGateway]:
    """The process, without callers before the test and after it."""
    await process.wait_empty()
    yield process
    if process.process.poll() is None:
        assert await process.wait_empty() < FREED_S


# -- The example clients -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("module", "protocol"), [("pcm_client", "rawpcm"), ("chat_client", "moshi")])
async def test_an_example_client_says_hello_and_hears_a_sentence(gateway: RealGateway, tmp_path: Path, module: str, protocol: str) -> None:
    question, answer = tmp_path / "question.wav", tmp_path / "answer.wav"
    write_wav(str(question), hello(2.0)[:-7])
    command = [sys.executable, "-m", f"examples.{module}", str(question), str(answer), "--seed", "1", "--url", gateway.url(protocol)]
    command += ["--listen-seconds", "3"] + (["--voice", "NATF0.pt"] if protocol == "moshi" else [])
    done = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, env=own_environ(), capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()[0].split()) >= 3, done.stdout
    heard = read_wav(str(answer))
    if protocol == "rawpcm":
        assert heard.size == 5 * RATE - 7
    levels = [rms(part) for part in np.array_split(heard, heard.size // FRAME)]
    assert max(levels) > 0.02  # somebody speaks
    assert min(levels) < 0.002  # and not all the time


@pytest.mark.parametrize("num_samples", [1, 1919, 1920, 1921, 2000])
async def test_a_script_hears_as_many_samples_as_it_said(gateway: RealGateway, num_samples: int) -> None:
    call = await converse(gateway, hello(1.0)[:num_samples])
    assert call.pcm.size == num_samples


async def test_a_minute_pushed_at_full_speed_is_answered_in_full(gateway: RealGateway) -> None:
    """It crosses the 750 rows that the model looks back over."""
    num_samples = 760 * FRAME + 5
    call = await converse(gateway, np.resize(hello(3.0), num_samples), seed=1)
    assert call.pcm.size == num_samples
    levels = [rms(call.pcm[start * RATE : (start + 10) * RATE]) for start in range(0, 60, 10)]
    assert all(0.001 < level < 0.5 for level in levels), levels  # it goes on answering, and in a voice
    assert len(call.text.split()) >= 3 * 3


# -- Several callers -----------------------------------------------------------------------------------------------------------------


async def test_four_callers_on_both_wires_are_served_and_a_fifth_is_refused(gateway: RealGateway) -> None:
    async with AsyncExitStack() as stack:
        sockets = {protocol: [await stack.enter_async_context(gateway.connect(protocol)) for _ in range(2)] for protocol in PATHS}
        for ws in sockets["rawpcm"]:
            await Call().open(ws)
        for ws in sockets["moshi"]:
            await ChatCall(ws).open()

        async with gateway.connect("rawpcm") as fifth:
            refused = Call()
            await fifth.send_json({"type": "open"})
            while await refused.read(fifth) != "close":
                pass
        assert refused.code == 1013
        assert [event["code"] for event in refused.events] == ["capacity"]
        async with gateway.connect("moshi") as fifth:
            messages, code, _ = await read_chat(fifth)
        assert code == 1013
        assert messages[0].startswith(b"\x05every slot is taken")

        for protocol in PATHS:  # whoever hangs up makes room, on either wire, and on either wire there is a new caller
            await sockets[protocol][0].close()
            assert await gateway.wait_empty(NUM_SLOTS - 1) < FREED_S
            ws = await stack.enter_async_context(gateway.connect(protocol))
            await (Call().open(ws) if protocol == "rawpcm" else ChatCall(ws).open())
            assert await gateway.slots_used() == NUM_SLOTS


async def test_two_conversations_at_once_are_what_each_would_be_alone(gateway: RealGateway) -> None:
    """specs/moshi-protocol.md section 14, item 8."""
    speech = hello(2.4)
    noise = np.random.default_rng(7).normal(0, 0.05, speech.size).astype(np.float32)
    callers = [
        (speech, {"voice": "af_heart", "persona": "Your name is Ada.", "seed": 11}),
        (speech[::-1] + noise, {"voice": "am_michael", "persona": "You are a sailor named Bob.", "seed": 12}),
    ]
    alone = [await converse(gateway, pcm, **fields) for pcm, fields in callers]
    together = [Call(), Call()]
    async with gateway.connect("rawpcm") as first, gateway.connect("rawpcm") as second:
        sockets = (first, second)
        for call, ws, (_, fields) in zip(together, sockets, callers, strict=True):
            await call.open(ws, **fields)
        async with asyncio.TaskGroup() as group:
            for call, ws, (pcm, _) in zip(together, sockets, callers, strict=True):
                group.create_task(call.say(ws, pcm))
    for solo, call in zip(alone, together, strict=True):
        assert call.text == solo.text
        np.testing.assert_allclose(call.pcm, solo.pcm, rtol=0, atol=PCM_TOLERANCE)
    assert rms(alone[0].pcm - alone[1].pcm) > 0.01  # they are not the same conversation


async def test_every_slot_gives_the_same_greedy_call_however_often_it_was_used(gateway: RealGateway) -> None:
    """BR-066."""
    greedy = {"text_temperature": 0.0, "audio_temperature": 0.0}
    speech = hello(1.2)
    expected = await converse(gateway, speech, **greedy)
    for _ in range(3):
        calls = [Call() for _ in range(NUM_SLOTS)]
        async with AsyncExitStack() as stack:
            sockets = [await stack.enter_async_context(gateway.connect("rawpcm")) for _ in calls]
            for call, ws in zip(calls, sockets, strict=True):
                await call.open(ws, **greedy)
            async with asyncio.TaskGroup() as group:
                for call, ws in zip(calls, sockets, strict=True):
                    group.create_task(call.say(ws, speech))
        await gateway.wait_empty()
        for call in calls:
            assert call.text == expected.text
            np.testing.assert_allclose(call.pcm, expected.pcm, rtol=0, atol=PCM_TOLERANCE)
    assert rms(expected.pcm) > 0.001


async def test_live_callers_on_both_wires_get_one_frame_for_each_of_theirs(gateway: RealGateway) -> None:
    num_frames = 125
    before = await gateway.frames_dropped()
    speech = np.resize(hello(3.0), num_frames * FRAME)
    async with AsyncExitStack() as stack:
        sockets = {protocol: [await stack.enter_async_context(gateway.connect(protocol)) for _ in range(2)] for protocol in PATHS}
        calls = [Call(), Call()]
        chats = [ChatCall(ws) for ws in sockets["moshi"]]
        for call, ws in zip(calls, sockets["rawpcm"], strict=True):
            await call.open(ws, pacing="live")
        for chat in chats:
            await chat.open()
        async with asyncio.TaskGroup() as group:
            for call, ws in zip(calls, sockets["rawpcm"], strict=True):
                group.create_task(call.say(ws, speech, is_paced=True))
            for chat in chats:
                group.create_task(chat.say(speech))
    assert [len(call.frames) for call in calls] == [num_frames] * 2
    assert [call.errors for call in calls] == [[], []]
    assert [chat.num_audio for chat in chats] == [num_frames] * 2
    assert [chat.client.errors for chat in chats] == [[], []]
    assert all(rms(chat.client.pcm) > 0.001 for chat in chats)
    assert await gateway.frames_dropped() == before


# -- Voices and parameters -----------------------------------------------------------------------------------------------------------


async def test_voices_are_listed_and_taken_by_their_names_and_aliases(gateway: RealGateway) -> None:
    listed = json.loads(await gateway.get("/v1/voices"))
    assert listed == {"voices": ["af_heart", "am_adam", "am_michael", "bf_emma"], "default": "af_heart", "persona": "Your name is Nova."}
    for asked, got in [("af_heart", "af_heart"), ("af_heart.pt", "af_heart"), ("NATF0.pt", "af_heart"), ("NATM1", "am_adam")]:
        async with gateway.connect("moshi", voice_prompt=asked) as ws:
            chat = ChatCall(ws)
            await chat.open()
            assert chat.client.metadata[0]["voice_prompt"] == got
        async with gateway.connect("rawpcm") as ws:
            assert (await Call().open(ws, voice=asked))["voice"] == got
        await gateway.wait_empty()


@pytest.mark.parametrize("voice", ["NATF9.pt", "../config.json", "/etc/passwd", "af_heart.pt\0", "voices", ".", "a" * 300])
async def test_a_voice_that_is_not_there_is_refused_by_name(gateway: RealGateway, voice: str) -> None:
    async with gateway.connect("moshi", voice_prompt=voice) as ws:
        messages, code, reason = await read_chat(ws)
    assert code == 1008
    assert messages[0][:1] == b"\x05"
    assert "voice" in messages[0].decode()
    assert "voice" in reason
    assert "passwd" not in messages[0].decode()
    async with gateway.connect("rawpcm") as ws:
        await ws.send_json({"type": "open", "voice": voice})
        call = Call()
        while await call.read(ws) != "close":
            pass
    assert call.code == 1008
    assert [event["code"] for event in call.events] == ["bad_parameter"]


async def test_sampling_parameters_are_honoured(gateway: RealGateway) -> None:
    speech = hello(2.0)

    async def say(**fields: float) -> Call:
        return await converse(gateway, speech, **fields)

    greedy = [await say(text_temperature=0, audio_temperature=0, seed=seed) for seed in (1, 2)]
    assert greedy[0].text == greedy[1].text
    np.testing.assert_array_equal(greedy[0].pcm, greedy[1].pcm)
    seeded = [await say(text_temperature=2.0, audio_temperature=3.0, audio_topk=500, seed=seed) for seed in (3, 3, 4)]
    np.testing.assert_array_equal(seeded[0].pcm, seeded[1].pcm)
    assert seeded[0].text == seeded[1].text
    assert rms(seeded[0].pcm - seeded[2].pcm) > 0.001
    silenced = await say(pad_mult=50, seed=3)  # padding wins every draw
    assert silenced.text == ""


async def test_the_query_of_the_web_client_is_taken_and_its_values_are_reported(gateway: RealGateway) -> None:
    url = f"{gateway.url('moshi')}?{WEB_QUERY}&{urlencode({'email': 'a@b.example', 'worker_auth_id': 'x'})}"
    started_s = time.monotonic()
    async with aiohttp.ClientSession() as http, http.ws_connect(url) as ws:
        chat = ChatCall(ws)
        await chat.open()
        assert time.monotonic() - started_s < 5  # far less; but the machine may be busy
        assert chat.client.metadata[0].items() >= {
            "text_temperature": 0.7,
            "text_topk": 25,
            "audio_temperature": 0.8,
            "audio_topk": 250,
            "pad_mult": 0,
            "text_seed": 482113,
            "audio_seed": 90211,
            "repetition_penalty_context": 64,
            "repetition_penalty": 1,
            "voice_prompt": "af_heart",
        }.items()
        await chat.say(hello(0.8))


async def test_open_reports_the_checkpoints_defaults(gateway: RealGateway) -> None:
    async with gateway.connect("rawpcm") as ws:
        ready = await Call().open(ws)
    assert ready["model"] == "tiny"
    assert (ready["sample_rate"], ready["frame_samples"]) == (RATE, FRAME)
    sampling = ready["sampling"]
    assert (sampling["text_temperature"], sampling["audio_temperature"], sampling["audio_topk"]) == (0.2, 0.4, 40)
    assert isinstance(sampling["text_seed"], int)


# -- The end -------------------------------------------------------------------------------------------------------------------------


async def test_sigterm_sends_callers_home_with_1001_and_the_status_is_0(gateway: RealGateway) -> None:
    speech: Pcm = hello(2.0)
    async with gateway.connect("rawpcm") as script, gateway.connect("moshi") as live:
        call, chat = Call(), ChatCall(live)
        await call.open(script, pacing="live")
        await chat.open()
        await script.send_bytes(speech[:FRAME].tobytes())
        gateway.process.send_signal(signal.SIGTERM)
        await live.send_bytes(chat.client.say(speech[:FRAME]))
        while await call.read(script) != "close":
            pass
        while await chat.read():
            pass
    assert (call.code, chat.code) == (1001, 1001)
    assert len(call.frames) == 1
    assert chat.num_audio == 1
    assert await asyncio.to_thread(gateway.process.wait, 30) == 0
    assert "draining: 2 calls" in gateway.log
