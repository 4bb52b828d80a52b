# SPDX-License-Identifier: Apache-2.0
"""Blocks that all requests share: which steps have a call of their own over them (cascade), and what it gives."""

import pytest
import strobe
import torch
from buffers import check_nothing_waits
from kinds import KINDS, OF_REQUESTS, OPTIONS, SHARED, run
from steps import Server


@pytest.fixture
def shared_calls(monkeypatch):
    """The options of each call of strobe.shared_prefix_attention."""
    calls, attend = [], strobe.shared_prefix_attention

    def attend_and_note(*tensors, **options):
        calls.append(options)
        return attend(*tensors, **options)

    monkeypatch.setattr(strobe, "shared_prefix_attention", attend_and_note)
    return calls


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("options", ["plain", "softcap"])
def test_shared_blocks_are_read_once(place, shared_calls, options, causal):
    server = Server(**place, options=OPTIONS[options])
    run(server, server.step(SHARED, causal=causal, shared=32), common_prefix_len=32)
    assert [(call["prefix_pages"], call["causal"]) for call in shared_calls] == [(2, causal)]


@pytest.mark.parametrize("kind", ["window", "sinks", "alibi", "fp8", "causal flags of requests"])
def test_shared_blocks_of_layers_that_need_one_call(place, shared_calls, kind):
    arguments, causal = KINDS[kind]
    server = Server(**place, **arguments)
    flags = [1, 0, 1, 0] if causal == OF_REQUESTS else causal
    run(server, server.step(SHARED, causal=flags, shared=32), common_prefix_len=32)
    assert shared_calls == []


def test_a_causal_flag_of_one_request_with_shared_blocks(place, shared_calls):
    server = Server(**place)
    run(server, server.step([(64, 20)], causal=[0], shared=32), common_prefix_len=32)
    assert shared_calls == []


def test_shared_blocks_with_batch_invariance(place, shared_calls, monkeypatch):
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    server = Server(**place)
    run(server, server.step(SHARED, shared=32), common_prefix_len=32)
    assert shared_calls == []


def test_spans_behind_shared_blocks(place, shared_calls):
    server = Server(**place, has_spans=True)
    step = server.step(SHARED, shared=32).with_spans({1: [(64, 66)], 3: [(140, 160), (165, 169)]})
    run(server, step, common_prefix_len=32)
    assert shared_calls == []


ENOUGH = {
    "common_prefix_len": 8192,
    "query_lens": [1] * 8,
    "num_query_heads": 8,
    "num_kv_heads": 2,
    "use_alibi": False,
    "use_sliding_window": False,
    "use_local_attention": False,
    "num_sms": 132,
    "dcp_world_size": 1,
}
"""What vLLM before 0.32 asks of a step, where a call of its own over the shared blocks is worth it."""


def test_enough_shared_blocks_have_a_call_of_their_own():
    assert Server().builder.use_cascade_attention(**ENOUGH)
    assert Server(options=OPTIONS["softcap"]).builder.use_cascade_attention(**ENOUGH)


@pytest.mark.parametrize(
    "step",
    [
        {"common_prefix_len": 8176},
        {"query_lens": [1] * 7},
        {"use_alibi": True},
        {"use_sliding_window": True},
        {"use_local_attention": True},
        {"dcp_world_size": 2},
    ],
    ids=lambda step: next(iter(step)),
)
def test_steps_whose_shared_blocks_have_none(step):
    assert not Server().builder.use_cascade_attention(**ENOUGH | step)


@pytest.mark.parametrize(
    "arguments",
    [{"has_spans": True}, *(KINDS[kind][0] for kind in ("window", "sinks", "alibi", "fp8"))],
    ids=["spans", "window", "sinks", "alibi", "fp8"],
)
def test_layers_whose_shared_blocks_have_none(arguments):
    assert not Server(**arguments).builder.use_cascade_attention(**ENOUGH)


def test_batch_invariant_steps_have_one_call(monkeypatch):
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    assert not Server().builder.use_cascade_attention(**ENOUGH)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_shared_blocks_do_not_wait_for_the_device():
    server = Server(device="cuda", dtype=torch.bfloat16)
    check_nothing_waits(server, server.step(SHARED, shared=32), common_prefix_len=32)
