# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's profiler shows of attention, and the FLOPs that its counter counts."""

import pytest
import strobe
import strobe.torch
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.profiler import profile
from torch.utils.flop_counter import FlopCounterMode

BATCH, HEADS, ROWS, KEYS, HEAD_DIM, HEAD_DIM_V = 2, 4, 30, 50, 16, 24


def tensors():
    shapes = ((BATCH, ROWS, HEADS, HEAD_DIM), (BATCH, KEYS, 2, HEAD_DIM), (BATCH, KEYS, 2, HEAD_DIM_V))
    return [torch.randn(shape, generator=torch.Generator().manual_seed(0)) for shape in shapes]


def names(function):
    with profile() as profiled:
        function()
    return {event.name for event in profiled.events()}


def test_events():
    q, k, v = tensors()
    assert "strobe::attention" in names(lambda: strobe.torch.attention(q, k, v))
    assert "strobe::attention" in names(lambda: strobe.attention(q, k, v))
    x = q.transpose(1, 2)
    with strobe.torch.sdpa():
        assert "strobe::attention" in names(lambda: scaled_dot_product_attention(x, x, x))
    q.requires_grad_()
    seen = names(lambda: strobe.torch.attention(q, k, v).sum().backward())
    assert {"StrobeAttention", "StrobeAttentionBackward"} <= seen


def test_events_of_an_append():
    cache = torch.zeros(1, 8, 2, HEAD_DIM)
    new, lengths = torch.ones(1, 1, 2, HEAD_DIM), torch.zeros(1, dtype=torch.int32)
    assert "strobe::append" in names(lambda: strobe.append(cache, cache.clone(), new, new, lengths))


PAIRS = 2 * (HEAD_DIM + HEAD_DIM_V) * HEADS  # FLOPs for a query and a key


@pytest.mark.parametrize("causal", [False, True, "top_left"])
def test_flops(causal):
    q, k, v = (x.requires_grad_() for x in tensors())
    flops = PAIRS * BATCH * ROWS * KEYS // (2 if causal else 1)
    with FlopCounterMode(display=False) as counter:
        out = strobe.torch.attention(q, k, v, causal=causal)
        assert counter.get_total_flops() == flops
        out.sum().backward()
    assert counter.get_total_flops() == flops * 7 // 2
    if not causal:  # PyTorch's formula does not halve
        with FlopCounterMode(display=False) as counter:
            heads_first = (x.detach().transpose(1, 2).repeat_interleave(HEADS // x.shape[2], 1) for x in (q, k, v))
            scaled_dot_product_attention(*heads_first)
        assert counter.get_total_flops() == flops


def test_flops_of_packed_sequences():
    q, k, v = (x[0] for x in tensors())
    options = {f"cu_seqlens_{side}": torch.tensor(ends, dtype=torch.int32) for side, ends in ENDS.items()}
    with FlopCounterMode(display=False) as counter:
        strobe.torch.attention(q, k, v, **options)
    assert counter.get_total_flops() == PAIRS * (10 * 5 + 20 * 45)
    on_meta = {name: x.to("meta") for name, x in options.items()} | {"max_seqlen_q": 20, "max_seqlen_k": 45}
    with FlopCounterMode(display=False) as counter:
        strobe.torch.attention(*(x.to("meta") for x in (q, k, v)), **on_meta)
    assert counter.get_total_flops() == PAIRS * 2 * 20 * 45


ENDS = {"q": [0, 10, 30], "k": [0, 5, 50]}
