# SPDX-License-Identifier: Apache-2.0
"""Kinds of layers and of steps that the tests of the backend have in common."""

MIXED = [(0, 37), (120, 1), (200, 1), (64, 20), (0, 1), (15, 1), (16, 16), (300, 5)]
OPTIONS = {
    "plain": {},
    "window": {"sliding_window": 33},
    "sinks": {"sinks": [0.5, -1.0, 2.0, 0.0, 1.0, 3.0, -0.5, 0.25]},
    "softcap": {"logits_soft_cap": 2.0},
    "alibi": {"alibi_slopes": [2.0**-i for i in range(1, 9)]},
    "window, sinks, softcap": {"sliding_window": 20, "sinks": [0.5] * 8, "logits_soft_cap": 5.0},
}
SPANS = (
    [(0, 90), (120, 1), (30, 40), (64, 20), (40, 60)],
    {
        0: [(60, 80), (0, 19), (20, 29), (40, 40), (200, 220)],
        1: [(100, 110)],
        2: [(25, 44), (60, 79)],
        3: [],
    },
)
"""Requests and their spans: whole, cut by a chunk's begin and end, side by side, of one token, and behind the step."""
SHARED = [(40, 1), (64, 3), (33, 1), (150, 20)]
"""Requests that can have 32 keys in common."""
OF_REQUESTS = "of requests"
KINDS = {name: ({"options": options}, True) for name, options in OPTIONS.items()} | {
    "fp8": ({"scales": (0.02,)}, True),
    "fp8, a scale for each head": ({"scales": (0.02, 0.005)}, True),
    "fp8, causal flags of requests": ({"scales": (0.02,)}, OF_REQUESTS),
    "causal flags of requests": ({}, OF_REQUESTS),
    "window, causal flags of requests": ({"options": {"sliding_window": 33}}, OF_REQUESTS),
    "no causal mask": ({}, False),
    "encoder": ({"options": {"attn_type": "encoder_only"}}, False),
    "encoder, window": ({"options": {"attn_type": "encoder_only", "sliding_window": 9}}, False),
    "cross-attention": ({"options": {"attn_type": "encoder_decoder"}}, False),
}
"""Of layers: what makes their server, and `causal` of its steps."""


def step_of(server, lengths, causal, tokens=0):
    """A step of a server of one of KINDS; a request of an encoder has no keys beside its own tokens."""
    if server.options.get("attn_type") == "encoder_only":
        lengths = [(0, new) for _, new in lengths]
    flags = [request % 3 % 2 for request in range(len(lengths))]
    return server.step(lengths, causal=flags if causal == OF_REQUESTS else causal, tokens=tokens)


def run(server, step, common_prefix_len=0):
    metadata = server.builder.build(common_prefix_len, step.common())
    step.check(step.forward(metadata))
