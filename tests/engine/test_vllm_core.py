"""The language model through the real vLLM engine: golden tables, parity with PyPI `moshi`, prefill, prefix cache, masks, memory.

One engine per family for the whole module: starting one takes seconds.
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Iterator
from pathlib import Path

import golden
import numpy as np
import psutil
import pytest
import torch
from lm_reference import GREEDY, PERSONA, golden_checkpoint, golden_prompt, golden_setup, golden_table, user_frame

from gateway.engine.lm.depth import rms_norm
from gateway.engine.prompt import PromptRows, Voice, build_prompt
from gateway.errors import ConfigError, EngineError

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")

NUM_SLOTS = 4


@pytest.fixture(scope="module", params=["personaplex", "moshi"])
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def core(family: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    import gateway.engine.vllm  # noqa: F401
    from gateway.engine.vllm.core import LockstepCore

    torch.set_num_threads(1)  # as the gateway does for small models on a CPU
    checkpoint = golden_checkpoint(tmp_path_factory.mktemp(family), golden.A4, family)
    setup = golden_setup(checkpoint, num_slots=NUM_SLOTS, dtype="float32")
    core = LockstepCore(setup, setup.check_memory())
    yield core
    core.shutdown()


class Calls:
    """Drives slots of a core and collects output frames (text, 8 codes) per slot."""

    def __init__(self, core) -> None:
        self.core = core
        self.outputs: dict[int, list[list[int]]] = {}

    def open(self, slot_idx: int, prompt: PromptRows | None = None) -> None:
        self.core.open(slot_idx, prompt or golden_prompt(self.core.checkpoint), GREEDY)
        self.outputs[slot_idx] = []

    @torch.inference_mode()
    def step(self, users: dict[int, list[int]], steered: frozenset[int] = frozenset()) -> list[int]:
        """Step the given slots; returns the slots whose prompt was completed."""
        on = self.core.frames._device
        if users:
            self.core.frames.set_user(torch.tensor(list(users), device=on), torch.tensor(list(users.values()), device=on))
        slots, completed, codes = self.core.step(list(users), steered)
        for slot_idx, row, frame in zip(slots, self.core.frames.read_rows(slots) if slots else (), codes if slots else (), strict=True):
            self.outputs[slot_idx].append([int(row[0]), *frame.tolist()])
        return completed

    def close(self, slot_idx: int) -> list[list[int]]:
        self.core.close(slot_idx)
        return self.outputs.pop(slot_idx)


def expected_frames(family: str) -> dict[int, list[int]]:
    return golden_table(f"a4_{family}")


def first_user(family: str) -> int:
    """Moshi's reference loses w_0; here the first frame received is w_1."""
    return 0 if family == "personaplex" else 1


def check_against_table(family: str, outputs: list[list[int]]) -> None:
    table = expected_frames(family)
    lines = [line for line in table if line < len(outputs) and (line or family == "personaplex")]
    assert [outputs[line] for line in lines] == [table[line] for line in lines]


def test_golden_table_alone(core, family: str) -> None:
    calls = Calls(core)
    calls.open(2)
    assert calls.step({}) == [2]
    for i in range(59):
        calls.step({2: user_frame(i + first_user(family))})
    check_against_table(family, calls.close(2))


@pytest.mark.parametrize("rows", [1, 3, 20])
@torch.inference_mode()
def test_the_norm_of_a_cpu_is_rms_norm(rows: int) -> None:
    from gateway.engine.vllm.model import cpu_rms_norm

    generator = torch.Generator().manual_seed(rows)
    x, alpha = torch.randn(rows, 96, generator=generator), torch.randn(96, generator=generator)
    torch.testing.assert_close(cpu_rms_norm(x, alpha), rms_norm(x, alpha), atol=1e-6, rtol=1e-5)
    tiny = x * 1e-5  # its mean square is below RMS_EPS
    torch.testing.assert_close(cpu_rms_norm(tiny, alpha), rms_norm(tiny, alpha), atol=1e-7, rtol=1e-5)
    assert torch.equal(cpu_rms_norm(x.bfloat16(), alpha.bfloat16()), rms_norm(x.bfloat16(), alpha.bfloat16()))


@pytest.mark.skipif(torch.cuda.is_available(), reason="vLLM's CUDA graphs run there")
def test_the_temporal_pass_of_a_cpu_is_traced_and_its_weights_are_kept_once(core) -> None:
    calls = Calls(core)
    calls.open(0)
    calls.step({})
    calls.close(0)
    model = core._runner.model
    assert model._trace is not None
    assert [linear.weight.numel() for layer in model.layers for linear in layer.products] == [0] * 4 * len(model.layers)


def test_golden_table_for_callers_that_join_pause_and_leave_at_random(core, family: str) -> None:
    """Twelve calls over four slots; each sees the golden user frames at its own pace, and each must give the golden table."""
    rng = np.random.default_rng(7)
    calls, sent, done = Calls(core), {}, 0
    while done < 12:
        for slot_idx in range(NUM_SLOTS):
            if slot_idx not in calls.outputs and rng.random() < 0.2:
                calls.open(slot_idx)
                sent[slot_idx] = -1
        live = [slot_idx for slot_idx, count in sent.items() if count >= 0 and rng.random() < 0.6]
        completed = calls.step({slot_idx: user_frame(sent[slot_idx] + first_user(family)) for slot_idx in live})
        for slot_idx in [*live, *completed]:
            sent[slot_idx] += 1
            if sent[slot_idx] == 59 or (sent[slot_idx] > 20 and rng.random() < 0.02):
                check_against_table(family, calls.close(slot_idx))
                del sent[slot_idx]
                done += 1
    for slot_idx in list(calls.outputs):
        check_against_table(family, calls.close(slot_idx))


def test_prefill_in_one_chunk_equals_prefill_row_by_row(core, family: str) -> None:
    """Row by row: start from the first row alone and force the rest of the prompt, one live step each."""
    if family != "personaplex":
        pytest.skip("needs a model that takes prompts")
    whole = golden_prompt(core.checkpoint)
    calls = Calls(core)
    calls.open(0)
    calls.step({})
    free = np.full(8, -1)
    calls.open(1, PromptRows(rows=whole.rows[:1], embeddings=None, forced=free, user=whole.user, salt="row by row"))
    calls.step({})
    frames = core.frames
    for position in range(1, len(whole.rows)):
        row = torch.from_numpy(whole.rows[position]).to(frames._device)
        frames._text[1], frames._audio[1] = row[0], row[1:9]
        frames._user_before[1] = row[9:]
        calls.step({1: row[9:].tolist()})
        assert frames.window_rows(1)[-1].tolist() == whole.rows[position].tolist()
    # Position P is forced by the prompt's end, exactly as the chunked prefill does it.
    frames._audio[1, 1:] = torch.from_numpy(whole.forced[1:]).to(frames._device)
    for i in range(40):
        calls.step({0: user_frame(i), 1: user_frame(i)})
    assert calls.close(0)[-39:] == calls.close(1)[-39:]


def test_a_long_prompt_is_prefilled_in_chunks_without_stopping_the_others(core, family: str) -> None:
    if family != "personaplex":
        pytest.skip("needs a model that takes prompts")
    rng = np.random.default_rng(3)
    voice = Voice(name="long", codes=rng.integers(0, 2048, (300, 8)))
    prompt = build_prompt(core.checkpoint.lm, core.checkpoint.profile, voice, PERSONA)
    calls = Calls(core)
    calls.open(0)
    calls.step({})
    calls.open(3, prompt)
    steps = 0
    while 3 not in calls.step({0: user_frame(steps)}):
        steps += 1
    chunk = core.setup.chunk
    assert steps + 1 == -(-len(prompt.rows) // chunk)
    for i in range(steps + 1, 40):
        calls.step({0: user_frame(i), 3: user_frame(i)})
    check_against_table(family, calls.close(0))
    assert len(calls.close(3)) == 40 - steps


def test_the_next_caller_with_the_same_prompt_is_served_from_the_prefix_cache(core, family: str) -> None:
    if family != "personaplex":
        pytest.skip("needs a model that takes prompts")
    rng = np.random.default_rng(11)
    voice = Voice(name="shared", codes=rng.integers(0, 2048, (2 * core.setup.block_size, 8)))
    prompt, other = (build_prompt(core.checkpoint.lm, core.checkpoint.profile, voice, persona) for persona in (PERSONA, (7, 8)))
    calls = Calls(core)
    hits = []
    for slot_idx, rows in ((0, prompt), (1, prompt), (2, other)):
        before = core.prefix_cache_hits
        calls.open(slot_idx, rows)
        while slot_idx not in calls.step({}):
            pass
        hits.append(core.prefix_cache_hits - before)
    for i in range(30):
        calls.step({slot_idx: user_frame(i) for slot_idx in range(3)})
    first, second, third = (calls.close(slot_idx) for slot_idx in range(3))
    assert hits[0] == 0
    assert hits[1] == len(prompt.rows) // core.setup.block_size * core.setup.block_size > 0
    assert hits[2] == 0
    assert first == second
    assert first != third


def test_steering_forces_padding_and_silence_and_nothing_else(core, family: str) -> None:
    calls = Calls(core)
    calls.open(0)
    calls.open(1)
    calls.step({})
    for i in range(10):
        calls.step({0: user_frame(i), 1: user_frame(i)}, steered=frozenset([1]) if i in (4, 5) else frozenset())
    rows, steered = core.frames.window_rows(0), core.frames.window_rows(1)
    silence = list(core.checkpoint.profile.silence_codes)
    # What was forced in step 4 is read in step 5: row P + 5 of a window that ends at row P + 9.
    assert steered[-5].tolist()[:9] == [3, *silence]
    assert steered[-4].tolist()[:9] == [3, *silence]
    assert rows[:-5].tolist() == steered[:-5].tolist()
    assert rows[-5:, 9:].tolist() == steered[-5:, 9:].tolist()  # the user's side is never steered
    assert rows[-3:].tolist() != steered[-3:].tolist()
    calls.close(0)
    calls.close(1)


def test_a_call_is_rebuilt_from_its_rows(core, family: str) -> None:
    """DESIGN section 4: one prefill of the rows at hand goes on where the call was. Exact while the call is shorter than its window; later
    the layers above the first have seen further back than the rows that are left."""
    if family != "moshi":
        pytest.skip("needs a model that starts from one row")
    calls = Calls(core)
    calls.open(0)
    calls.step({})
    for i in range(9):
        calls.step({0: user_frame(i)})
    rows = core.frames.window_rows(0).astype(np.int64)
    assert len(rows) == 10
    free = np.full(8, -1)
    calls.open(1, PromptRows(rows=rows, embeddings=None, forced=free, user=np.array(user_frame(8)), salt="rebuilt"))
    calls.step({})
    for i in range(9, 40):
        calls.step({0: user_frame(i), 1: user_frame(i)})
    assert calls.close(0)[-31:] == calls.close(1)[-31:]


def test_the_1001st_call_uses_no_more_memory_than_the_10th(core, family: str) -> None:
    if family != "personaplex":
        pytest.skip("needs a model that takes prompts")
    calls, process = Calls(core), psutil.Process()
    pool = core._core.scheduler.kv_cache_manager.block_pool
    free_before = pool.get_num_free_blocks()
    sizes = {}
    for number in range(1, 1002):
        slot_idx = number % NUM_SLOTS
        calls.open(slot_idx)
        calls.step({})
        calls.step({slot_idx: user_frame(number)})
        calls.close(slot_idx)
        if number in (10, 200, 1001):
            gc.collect()
            sizes[number] = (process.memory_info().rss, len(gc.get_objects()))
    calls.step({})
    assert pool.get_num_free_blocks() == free_before
    assert not core._requests
    assert not core._runner.slot_of
    assert not core._core.scheduler.requests
    assert sizes[1001][1] - sizes[200][1] < 500  # objects
    assert sizes[1001][0] - sizes[10][0] < 16 * 2**20  # bytes; the allocator's noise, against 1.2 MB of state a call


def test_all_slots_at_their_full_window_keep_their_blocks(core, family: str) -> None:
    calls = Calls(core)
    for slot_idx in range(NUM_SLOTS):
        calls.open(slot_idx)
    while len(calls.step({})) == 0:
        pass
    for i in range(120):
        calls.step({slot_idx: user_frame(i) for slot_idx in range(NUM_SLOTS)})
    held = core._core.scheduler.kv_cache_manager.block_pool
    assert held.num_gpu_blocks - held.get_num_free_blocks() <= NUM_SLOTS * core.setup.blocks_per_slot + 1
    assert len({tuple(map(tuple, calls.close(slot_idx))) for slot_idx in range(NUM_SLOTS)}) == 1


def test_a_slot_that_cannot_run_is_an_engine_error(core, family: str) -> None:
    calls = Calls(core)
    calls.open(0)
    calls.step({})
    core._core.abort_requests([core._requests[0]])
    with pytest.raises(EngineError, match=r"slots \[0\]"):
        calls.step({0: user_frame(0)})
    core.close(0)


def test_too_many_slots_for_the_memory_are_refused_with_the_number_that_fits(core, family: str) -> None:
    fits = core.slots_that_fit
    assert fits >= NUM_SLOTS
    with pytest.raises(ConfigError, match=r"lower --batch-size to \d+"):
        dataclasses.replace(core.setup, num_slots=fits * 2).check_memory()
    huge = dataclasses.replace(core.checkpoint, lm=dataclasses.replace(core.checkpoint.lm, dim=2**20, hidden=2**22))
    with pytest.raises(ConfigError, match=r"needs \d+\.\d GiB for its weights and one call"):
        dataclasses.replace(core.setup, checkpoint=huge).check_memory()


def test_parity_with_the_reference_for_300_frames(core, family: str) -> None:
    """PyPI `moshi` with the same weights, one row at a time, against four slots that join, pause and leave; far past the window."""
    if family != "moshi":
        pytest.skip("needs a model that starts from one row")
    reference = reference_outputs(core.checkpoint, [[user_frame(31 * call + i) for i in range(301)] for call in range(NUM_SLOTS)])
    rng = np.random.default_rng(19)
    calls, sent = Calls(core), {}
    pending = list(range(NUM_SLOTS))
    done = {}
    while len(done) < NUM_SLOTS:
        if pending and rng.random() < 0.05:
            calls.open(pending[-1])
            sent[pending.pop()] = 0
        ready = {slot_idx for slot_idx, count in sent.items() if count and rng.random() < 0.8}
        completed = calls.step({slot_idx: user_frame(31 * slot_idx + sent[slot_idx]) for slot_idx in ready})
        for slot_idx in [*ready, *completed]:
            sent[slot_idx] += 1
            if sent[slot_idx] == 301:
                done[slot_idx] = calls.close(slot_idx)
                del sent[slot_idx]
    for slot_idx, outputs in done.items():
        assert outputs[1:] == reference[slot_idx]


def test_a_call_may_be_as_long_as_promised(family: str, tmp_path: Path) -> None:
    """vLLM ends a request that *reaches* max_model_len, so the engine must ask for one position more.

    The last with this family: vLLM, when it makes another engine, throws away the CUDA graphs of all that the process has.
    """
    from gateway.engine.vllm.core import LockstepCore

    if family != "personaplex":
        pytest.skip("needs a model that takes prompts")
    setup = golden_setup(golden_checkpoint(tmp_path, golden.A4, family), num_slots=1, dtype="float32")
    prompt = golden_prompt(setup.checkpoint)
    core = LockstepCore(dataclasses.replace(setup, max_model_len=len(prompt.rows) + setup.chunk + 1), setup.check_memory())
    calls = Calls(core)
    calls.open(0)
    calls.step({})
    for i in range(setup.chunk):
        calls.step({0: user_frame(i)})
    assert len(calls.close(0)) == setup.chunk + 1  # no shutdown: vLLM's would take the process group away from the module's engine


def reference_outputs(checkpoint, users: list[list[list[int]]]) -> list[list[list[int]]]:
    """Text and codes of the reference's calls 1.. for each conversation; call 0 returns nothing."""
    import os

    os.environ["NO_TORCH_COMPILE"] = "1"
    from moshi.models import LMGen, loaders

    raw = {key: value for key, value in golden.lm_config(**golden.A4, steps=8).items() if not key.endswith("_name")}
    raw.pop("model_type")
    raw.pop("lm_gen_config")
    model = loaders.get_moshi_lm(checkpoint.weights, lm_kwargs=raw, device="cpu", dtype=torch.float32)
    outputs = []
    for frames in users:
        generator = LMGen(model, use_sampling=False)
        with torch.no_grad(), generator.streaming(1):
            steps = [generator.step(torch.tensor(frame)[None, :, None]) for frame in frames]
        assert steps[0] is None
        outputs.append([step[0, :, 0].tolist() for step in steps[1:]])
    return outputs
