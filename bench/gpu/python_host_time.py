# SPDX-License-Identifier: Apache-2.0
"""Host time from a Python call to its launch, beside PyTorch's own attention: python_host_time.py OUT.json

Calls are short enough that the GPU keeps up, so that a loop without synchronisation is the time of the host alone. The
least of many loops is reported: what the call costs when nothing disturbs it.
"""

import json
import sys
import timeit
from pathlib import Path

import flash_attn
import flash_attn_interface
import strobe
import strobe.torch
import torch
from torch.nn.functional import scaled_dot_product_attention

CALLS, LOOPS = 200, 40


def microseconds(call):
    for _ in range(3):
        call()
    torch.cuda.synchronize()

    def loop():
        seconds = timeit.timeit(call, number=CALLS)
        torch.cuda.synchronize()
        return seconds

    return 1e6 * min(loop() for _ in range(LOOPS)) / CALLS


def training_calls(q, k, v):
    """A call that records its gradient, alone and with the backward; and the backward by itself."""
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    heads_first = [x.detach().transpose(1, 2).requires_grad_() for x in (q, k, v)]
    d_o = torch.randn_like(q)
    o, lse = strobe.attention(q, k, v, causal=True, return_lse=True)
    gradients = dict(zip(("dq", "dk", "dv"), map(torch.empty_like, (q, k, v)), strict=True))

    def forward():
        return strobe.torch.attention(*inputs, causal=True)

    def sdpa():
        return scaled_dot_product_attention(*heads_first, is_causal=True)

    def in_this_thread(call):
        """Without the way to autograd's thread of the device and back."""

        def run():
            with torch.autograd.set_multithreading_enabled(False):
                call()

        return run

    both = {
        "strobe.torch.attention, forward and backward": lambda: torch.autograd.grad(forward(), inputs, d_o),
        "torch scaled_dot_product_attention, forward and backward": lambda: torch.autograd.grad(
            sdpa(), heads_first, d_o.transpose(1, 2)
        ),
    }
    return {
        "strobe.torch.attention, recorded": forward,
        "torch scaled_dot_product_attention, recorded": sdpa,
        **both,
        **{f"{name}, one thread": in_this_thread(call) for name, call in both.items()},
        "strobe.attention_backward": lambda: strobe.attention_backward(d_o, q, k, v, o, lse, causal=True, **gradients),
    }


def main():
    q, k, v = (torch.randn(1, 128, 8, 64, dtype=torch.bfloat16, device="cuda") for _ in range(3))
    heads_first = [x.transpose(1, 2) for x in (q, k, v)]
    out = torch.empty_like(q)

    def sdpa():
        return scaled_dot_product_attention(*heads_first, is_causal=True)

    calls = {
        "strobe.attention": lambda: strobe.attention(q, k, v, causal=True),
        "strobe.attention, out=": lambda: strobe.attention(q, k, v, causal=True, out=out),
        "strobe.torch.attention": lambda: strobe.torch.attention(q, k, v, causal=True),
        "strobe.torch.attention, lse": lambda: strobe.torch.attention(q, k, v, causal=True, return_lse=True),
        "flash_attn_interface (strobe)": lambda: flash_attn_interface.flash_attn_func(q, k, v, causal=True),
        "flash_attn (strobe)": lambda: flash_attn.flash_attn_func(q, k, v, causal=True),
        "torch scaled_dot_product_attention": sdpa,
        "torch.empty_like": lambda: torch.empty_like(q),
    }
    try:
        from flash_attn_3 import flash_attn_interface as peer  # the real one, where it is installed

        calls["flash_attn_3"] = lambda: peer.flash_attn_func(q, k, v, causal=True)
    except ImportError:
        print("flash-attn is not installed here: no figure of its own call")
    with torch.no_grad():
        results = {name: round(microseconds(call), 2) for name, call in calls.items()}
        with strobe.torch.sdpa():
            results["scaled_dot_product_attention (strobe)"] = round(microseconds(sdpa), 2)
    results |= {name: round(microseconds(call), 2) for name, call in training_calls(q, k, v).items()}
    width = max(map(len, results))
    for name, time in results.items():
        print(f"{name:<{width}} {time:7.2f} us")
    device = torch.cuda.get_device_name()
    report = {"device": device, "torch": torch.__version__, "python": sys.version.split()[0], "host_us": results}
    Path(sys.argv[1]).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
