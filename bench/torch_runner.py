# SPDX-License-Identifier: Apache-2.0
"""Times PyTorch's attention, one turn for each request.

Requests and replies are JSON, one a line, on standard input and output:

    {"version": "2.13.0"}                                          said once, at the start
    {"prepare": {"implementation": "cudnn", "pass": ..., ...}}  -> {"ready": true}
    {"run": "cudnn"}                                            -> {"milliseconds": 12.3}
    whatever goes wrong                                         -> {"error": "one message"}

Implementations: pytorch (scaled_dot_product_attention's own choice), cudnn and flash_attention_2 (its backends), and
standard (the products and the softmax as separate operations). On the CPU a turn is as many calls as 50 ms hold; of
more than one the first does not count. On a GPU it is one launch to warm up and as many timed ones as the cell says,
between CUDA events. The median counts.

The caller interleaves turns with those of other implementations, so that all of them meet the same machine.
"""

import json
import math
import statistics
import sys
import time

TURN_MILLISECONDS = 50  # on the CPU
BACKENDS = {"cudnn": "CUDNN_ATTENTION", "flash_attention_2": "FLASH_ATTENTION"}


def reply(**message):
    print(json.dumps(message), flush=True)


class Cell:
    """One cell's inputs in PyTorch's own layout, [batch, heads, seqlen, d], and what runs on them."""

    def __init__(self, torch, cell):
        self.torch, self.cell = torch, cell
        self.backward = cell["pass"] == "backward"
        if cell["device"] == "cpu":
            torch.set_num_threads(cell["threads"])
        torch.manual_seed(0)
        if cell["causal"] and cell["seqlen"] != cell["seqlen_k"]:
            raise ValueError("is_causal aligns sequences of unequal length at their beginnings")
        queries, keys = cell["seqlen"], cell["seqlen_k"]
        self.q = self.normal(queries, cell["heads"], cell["head_dim"]).requires_grad_(self.backward)
        self.k = self.normal(keys, cell["heads_kv"], cell["head_dim"]).requires_grad_(self.backward)
        self.v = self.normal(keys, cell["heads_kv"], cell["head_dim_v"]).requires_grad_(self.backward)

    def normal(self, seqlen, heads, head_dim):
        # Laid out as the other implementations' tensors are, [batch, seqlen, heads, d], where the device is shared.
        cell, torch = self.cell, self.torch
        dtype, device = getattr(torch, cell["dtype"]), cell["device"]
        if device == "cpu":
            return torch.randn(cell["batch"], heads, seqlen, head_dim).to(dtype)
        shape = (cell["batch"], seqlen, heads, head_dim)
        return torch.randn(shape, dtype=dtype, device=device).transpose(1, 2)

    def fused(self, implementation):
        torch = self.torch
        options = {"is_causal": self.cell["causal"], "enable_gqa": self.cell["heads"] != self.cell["heads_kv"]}

        def attention():
            return torch.nn.functional.scaled_dot_product_attention(self.q, self.k, self.v, **options)

        if implementation not in BACKENDS:
            return attention
        backend = getattr(torch.nn.attention.SDPBackend, BACKENDS[implementation])

        def with_backend():
            with torch.nn.attention.sdpa_kernel(backend):
                return attention()

        return with_backend

    def standard(self):
        torch, n = self.torch, self.cell["seqlen"]
        group = self.cell["heads"] // self.cell["heads_kv"]
        k, v = (x.repeat_interleave(group, 1) if group > 1 else x for x in (self.k, self.v))
        hidden = torch.ones(n, n, dtype=torch.bool, device=self.q.device).triu(1) if self.cell["causal"] else None

        def attention():
            scores = self.q @ k.transpose(2, 3) * self.cell["head_dim"] ** -0.5
            if hidden is not None:
                scores = scores.masked_fill(hidden, -math.inf)
            return scores.softmax(-1) @ v

        return attention

    def prepare(self, implementation):
        """What runs the cell once."""
        forward = self.standard() if implementation == "standard" else self.fused(implementation)
        if not self.backward:
            run = self.torch.no_grad()(forward)
        else:
            o = forward()
            d_o = self.normal(self.cell["seqlen"], self.cell["heads"], self.cell["head_dim_v"])

            def run():
                return self.torch.autograd.grad(o, (self.q, self.k, self.v), d_o, retain_graph=True)

        if self.cell["device"] == "cpu":
            return lambda: self.host_milliseconds(run)
        run()  # rejections and a lack of memory show here
        return lambda: self.device_milliseconds(run)

    @staticmethod
    def host_milliseconds(run):
        calls = []
        while sum(calls) < TURN_MILLISECONDS:
            start = time.perf_counter()
            run()
            calls.append((time.perf_counter() - start) * 1e3)
        return statistics.median(calls[1:] or calls)

    def device_milliseconds(self, run):
        cuda = self.torch.cuda
        run()
        events = [
            (cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)) for _ in range(self.cell["launches"])
        ]
        for start, end in events:
            start.record()
            run()
            end.record()
        cuda.synchronize()
        return statistics.median(start.elapsed_time(end) for start, end in events)


class Session:
    """The cell at hand and its prepared implementations."""

    def __init__(self, torch):
        self.torch, self.cell, self.runs = torch, None, {}

    def prepare(self, request):
        implementation = request.pop("implementation")
        if self.cell is None or self.cell.cell != request:
            self.cell, self.runs = None, {}  # the last cell's memory goes before the next one's is taken
            if request["device"] != "cpu":
                self.torch.cuda.empty_cache()
            self.cell = Cell(self.torch, request)
        self.runs[implementation] = self.cell.prepare(implementation)

    def answer(self, request):
        if "prepare" in request:
            self.prepare(request["prepare"])
            reply(ready=True)
        else:
            reply(milliseconds=self.runs[request["run"]]())


def main():
    try:
        import torch
        import torch.nn.attention
    except ImportError as error:
        reply(error=str(error))
        return
    reply(version=torch.__version__)
    session = Session(torch)
    for line in sys.stdin:
        try:
            session.answer(json.loads(line))
        except (RuntimeError, ValueError, AttributeError, AssertionError) as error:
            reply(error=str(error).split("\n", maxsplit=1)[0])


main()
