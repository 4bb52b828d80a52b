# SPDX-License-Identifier: Apache-2.0
"""Metadata builder and implementation, driven as vLLM drives them, against float64; on a GPU also in CUDA graphs."""

import random
from types import SimpleNamespace

import pytest
import torch
from buffers import check_nothing_waits
from steps import LAYOUTS, Server, captured
from strobe_vllm import limits
from strobe_vllm.metadata import StrobeMetadataBuilder

CUDA = torch.cuda.is_available()
DEVICES = [("cpu", torch.float32), ("cpu", torch.bfloat16)]
if CUDA:
    DEVICES = [("cuda", torch.bfloat16), ("cuda", torch.float16)]
MIXED = [(0, 37), (120, 1), (200, 1), (64, 20), (0, 1), (15, 1), (16, 16), (300, 5)]
OPTIONS = {
    "plain": {},
    "window": {"sliding_window": 33},
    "sinks": {"sinks": [0.5, -1.0, 2.0, 0.0, 1.0, 3.0, -0.5, 0.25]},
    "softcap": {"logits_soft_cap": 2.0},
    "alibi": {"alibi_slopes": [2.0**-i for i in range(1, 9)]},
    "window, sinks, softcap": {"sliding_window": 20, "sinks": [0.5] * 8, "logits_soft_cap": 5.0},
}


def run(server, step, common_prefix_len=0):
    metadata = server.builder.build(common_prefix_len, step.common())
    step.check(step.forward(metadata))


@pytest.fixture(params=DEVICES, ids=lambda pair: f"{pair[0]}-{str(pair[1])[6:]}")
def place(request):
    return {"device": request.param[0], "dtype": request.param[1]}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", OPTIONS)
def test_mixed_batches(place, options, layout):
    server = Server(**place, layout=layout, options=OPTIONS[options])
    run(server, server.step(MIXED))


@pytest.mark.parametrize("seed", range(12))
def test_random_batches(place, seed):
    draw = random.Random(seed)
    server = Server(
        **place,
        seed=seed,
        heads=8,
        heads_kv=draw.choice([1, 2, 8]),
        head_size=draw.choice([32, 64, 80, 128, 320, 512]),
        block_size=draw.choice([8, 16, 32, 48]),
        layout=draw.choice(list(LAYOUTS)),
        options=OPTIONS[draw.choice(list(OPTIONS))],
    )
    most = server.block_size * server.max_blocks - 64
    for _ in range(3):
        lengths = [
            (draw.choice([0, 1, draw.randrange(most)]), draw.choice([1, 1, 1, 4, draw.randrange(1, 20)]))
            for _ in range(draw.randrange(1, server.max_requests))
        ]
        run(server, server.step(lengths))


@pytest.mark.parametrize("scales", [(0.02,), (0.02, 0.005)], ids=["of the layer", "of each head"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_caches_of_8_bits(place, scales, layout):
    server = Server(**place, scales=scales, layout=layout)
    run(server, server.step(MIXED))


@pytest.mark.parametrize("window", [None, 20])
def test_without_a_causal_mask(place, window):
    server = Server(**place, options={"sliding_window": window})
    run(server, server.step(MIXED, causal=False))


@pytest.mark.parametrize("window", [None, 20])
def test_causal_flags_of_requests(place, window):
    server = Server(**place, options={"sliding_window": window})
    run(server, server.step(MIXED, causal=[1, 0, 1, 0, 0, 1, 0, 1]))


@pytest.mark.parametrize("optimism", [0, 3])
@pytest.mark.parametrize("window", [None, 24])
def test_spans_of_tokens_that_see_each_other(place, window, optimism):
    """Prompts with images: whole, cut by a chunk's begin and end, side by side, of one token, and behind the step."""
    server = Server(**place, options={"sliding_window": window})
    step = server.step([(0, 90), (120, 1), (30, 40), (64, 20), (40, 60)])
    step.with_spans(
        {
            0: [(60, 80), (0, 19), (20, 29), (40, 40), (200, 220)],
            1: [(100, 110)],
            2: [(25, 44), (60, 79)],
            3: [],
        }
    )
    step.optimism = torch.tensor([0, optimism, 0, optimism, 0], dtype=torch.int32)  # of decodes alone
    common = step.common()
    metadata = server.builder.build(0, common)
    assert metadata.mm_prefix_range.query_start_loc.shape[0] > metadata.query_start_loc.shape[0]
    step.check(step.forward(metadata))


def test_steps_behind_their_spans_are_plain():
    server = Server()
    step = server.step([(120, 1), (64, 20)]).with_spans({0: [(10, 20)], 1: [(3, 40), (90, 95)]})
    metadata = server.builder.build(0, step.common())
    assert metadata.mm_prefix_range is None
    step.check(step.forward(metadata))


@pytest.mark.parametrize("has_spans", [False, True])
def test_graphs_hold_no_prompts_of_models_with_spans(has_spans):
    model = SimpleNamespace(is_mm_prefix_lm=has_spans)
    support = StrobeMetadataBuilder.get_cudagraph_support(SimpleNamespace(model_config=model), None)
    assert support.name == ("UNIFORM_BATCH" if has_spans else "ALWAYS")


@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("kind", ["encoder", "encoder_only"])
def test_encoders_have_no_cache(place, kind, window):
    server = Server(**place, options={"attn_type": kind, "sliding_window": window})
    before = server.cache.clone()
    step = server.step([(0, 37), (0, 1), (0, 64)], causal=False)
    run(server, step)
    assert torch.equal(before.view(torch.uint8), server.cache.reshape(before.shape).view(torch.uint8))


def test_cross_attention_reads_keys_of_the_encoder(place):
    """Queries are the decoder's, and all keys were written before."""
    server = Server(**place, options={"attn_type": "encoder_decoder"})
    step = server.step([(50, 3), (100, 1), (17, 9)], causal=False)
    step.forward(server.builder.build(0, step.common()))
    metadata = server.builder.build(0, step.common())
    out = torch.full_like(step.q, torch.nan)
    server.impl.forward(server.layer, step.q, None, None, server.cache, metadata, out)
    step.check(out)


def test_shared_blocks_are_read_once(place):
    server = Server(**place)
    run(server, server.step([(40, 1), (64, 3), (33, 1), (150, 20)], shared=32), common_prefix_len=32)


def test_a_captured_step_is_replayed_with_other_batches(place):
    """vLLM captures a graph with as short queries as can be, and replays it with any batch of as many tokens."""
    server = Server(**place, options={"sliding_window": 200})
    tokens, requests = 64, 12
    first = server.step([(5, 6), *[(9, 5)] * 10, (3, 8)], tokens=tokens)
    common = first.common(requests, longest=8)
    metadata = server.builder.build_for_cudagraph_capture(common)
    held = {name: getattr(first, name) for name in ("q", "k", "v")}
    out = torch.full_like(first.q, torch.nan)
    replay = captured(lambda: first.forward(metadata, out))
    for lengths in (
        [(0, 64)],
        [(300, 1)] * 12,
        [(0, 40), (211, 1), (17, 1), (90, 4)],
        [(31, 1)] * 3 + [(32, 30), (0, 31)],
    ):
        step = server.step(lengths, tokens=tokens)
        server.builder.build(0, step.common(requests))
        for name, tensor in held.items():
            tensor.copy_(getattr(step, name))
        replay()
        step.check(out)


def test_a_batch_of_uniform_queries_is_captured_as_one():
    from vllm.config import CUDAGraphMode

    server = Server(mode=CUDAGraphMode.FULL_AND_PIECEWISE)
    step = server.step([(20, 3)] * 4)
    assert server.builder.build_for_cudagraph_capture(step.common()).max_query_len == 3
    server = Server(mode=CUDAGraphMode.FULL)
    step = server.step([(20, 3)] * 4)
    assert server.builder.build_for_cudagraph_capture(step.common()).max_query_len == 12


def test_nothing_waits_for_the_device():
    """Neither the builder nor a layer's step reads a number back."""
    if not CUDA:
        pytest.skip("needs a GPU")
    server = Server(device="cuda", dtype=torch.bfloat16)
    check_nothing_waits(server, server.step(MIXED))


def test_batch_invariance(place, monkeypatch):
    """A request has the same bits alone and in a batch, and its last query as it would have as a decode."""
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    server = Server(**place)
    step = server.step(MIXED)
    whole = step.forward(server.builder.build(0, step.common()))
    step.check(whole)
    start = 0
    for index, (_, new) in enumerate(MIXED):
        for first in {0, new - 1}:
            rows = slice(start + first, start + new)
            alone = step.common(1, longest=new - first)
            alone.query_start_loc = torch.tensor([0, new - first], dtype=torch.int32, device=place["device"])
            alone.seq_lens = server.seq_lens[index : index + 1]
            alone.block_table_tensor = server.block_table[index : index + 1]
            alone.num_actual_tokens = new - first
            out = torch.full_like(step.q[rows], torch.nan)
            metadata = server.builder.build(0, alone)
            server.impl.forward(server.layer, step.q[rows], None, None, server.cache, metadata, out)
            assert torch.equal(out, whole[rows])
        start += new


def test_profiling_runs_have_no_metadata(place):
    server = Server(**place)
    out = torch.full((5, 8, 64), torch.nan, dtype=place["dtype"], device=place["device"])
    server.impl.forward(server.layer, out, out, out, torch.tensor([]), None, out)
    assert not out.any()


def test_what_is_refused():
    with pytest.raises(NotImplementedError, match="kv_cache_dtype is fp8_e5m2: it must be one of auto, float16"):
        Server(options={"kv_cache_dtype": "fp8_e5m2"})
    with pytest.raises(NotImplementedError, match="head_size is 576: it must be at most 512"):
        Server(head_size=576)
    options = {"cache_dtype": "fp8", "row_invariant": False, "on_gpu": True}
    reason = "head_size is 512: with an fp8 cache on a GPU it must be at most 256"
    assert limits.combination_reason(512, torch.bfloat16, **options) == reason
    assert limits.combination_reason(256, torch.bfloat16, **options) is None
    assert limits.combination_reason(512, torch.bfloat16, **(options | {"on_gpu": False})) is None
    invariant = options | {"cache_dtype": None, "row_invariant": True}
    assert limits.combination_reason(512, torch.bfloat16, **invariant) is None
    server = Server()
    step = server.step([(0, 2)])
    with pytest.raises(NotImplementedError, match="output_scale is given"):
        server.impl.forward(
            server.layer, step.q, step.k, step.v, server.cache, None, step.q, output_scale=torch.ones(1)
        )
