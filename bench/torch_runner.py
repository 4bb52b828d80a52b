"""Times PyTorch's scaled_dot_product_attention, one repetition for each request.

Requests and replies are JSON, one a line, on standard input and output:

    {"version": "2.13.0"}                       said once, at the start
    {"prepare": {"pass": "forward", ...}}  ->   {"ready": true}
    {"run": true}                          ->   {"milliseconds": 12.3}
    whatever goes wrong                    ->   {"error": "one sentence"}

The caller interleaves repetitions with those of other implementations, so that all of them meet the same machine.
"""

import json
import sys
import time


def reply(**message):
    print(json.dumps(message), flush=True)


def prepare(torch, cell):
    """Makes a cell's inputs in PyTorch's own layout, [batch, heads, seqlen, d]; returns what runs it once."""
    torch.set_num_threads(cell["threads"])
    torch.manual_seed(0)

    def normal(heads, head_dim):
        shape = (cell["batch"], heads, cell["seqlen"], head_dim)
        return torch.randn(shape).to(getattr(torch, cell["dtype"]))

    backward = cell["pass"] == "backward"
    q = normal(cell["heads"], cell["head_dim"]).requires_grad_(backward)
    k = normal(cell["heads_kv"], cell["head_dim"]).requires_grad_(backward)
    v = normal(cell["heads_kv"], cell["head_dim_v"]).requires_grad_(backward)
    options = {"is_causal": cell["causal"], "enable_gqa": cell["heads"] != cell["heads_kv"]}

    def forward():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)

    if not backward:
        return torch.no_grad()(forward)
    o = forward()
    d_o = normal(cell["heads"], cell["head_dim_v"])
    return lambda: torch.autograd.grad(o, (q, k, v), d_o, retain_graph=True)


def milliseconds(run_once):
    start = time.perf_counter()
    run_once()
    return (time.perf_counter() - start) * 1e3


def main():
    try:
        import torch
    except ImportError as error:
        reply(error=str(error))
        return
    reply(version=torch.__version__)
    run_once = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "prepare" in request:
                run_once = prepare(torch, request["prepare"])
                reply(ready=True)
            else:
                reply(milliseconds=milliseconds(run_once))
        except (RuntimeError, ValueError, AttributeError) as error:
            reply(error=str(error).split("\n", maxsplit=1)[0])


main()
