# SPDX-License-Identifier: Apache-2.0
"""What bool masks of keys in a GPU's memory cost: masks.py OUT.json

One query through sdpa() beside PyTorch's own attention; few queries by the rows of the keys that they see, and as a
bias with copies of K and V; many queries beside the same call with a bias or with used lengths. bfloat16, head_dim 128.
Medians in microseconds of loops of calls, by the slower of host and GPU, and "GPU" of a captured graph.
"""

import json
import sys
from pathlib import Path
from statistics import median

import strobe.torch
import torch
from strobe import _few_queries
from torch.nn.functional import scaled_dot_product_attention

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "gpu"))
from timing import captured


def seconds_of(work):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3


def microseconds(call, calls=20, rounds=7):
    def loop():
        for _ in range(calls):
            call()

    loop()
    return round(1e6 * median(seconds_of(loop) for _ in range(rounds)) / calls, 1)


def of_gpu(call, calls=10, rounds=7):
    replay = captured(call, calls)
    return round(1e6 * median(seconds_of(replay) for _ in range(rounds)) / calls, 1)


def draw(*shape):
    return torch.randn(shape, dtype=torch.bfloat16, device="cuda")


def padding(batch, keys):
    lengths = torch.randint(keys // 2, keys + 1, (batch, 1), device="cuda")
    return torch.arange(keys, device="cuda") < lengths


def one_query(batch, heads_kv, keys):
    q, k, v = draw(batch, 32, 1, 128), draw(batch, heads_kv, keys, 128), draw(batch, heads_kv, keys, 128)
    mask = padding(batch, keys)[:, None, None]

    def peer():
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)

    def ours():
        with strobe.torch.sdpa():
            return peer()

    cell = {"batch": batch, "heads": 32, "heads_kv": heads_kv, "keys": keys}
    for name, call in (("torch", peer), ("strobe", ours)):
        cell |= {name: microseconds(call), f"{name}, GPU": of_gpu(call)}
    return cell


def few_queries(heads_kv, queries):
    q, k, v = draw(8, queries, 32, 128), draw(8, 4096, heads_kv, 128), draw(8, 4096, heads_kv, 128)
    mask = padding(8, 4096)
    cell = {"batch": 8, "heads": 32, "heads_kv": heads_kv, "keys": 4096, "queries": queries}
    chosen = _few_queries.FEW_QUERIES
    for name, limit in (("rows", queries), ("bias and copies", 0)):
        _few_queries.FEW_QUERIES = limit
        cell[f"{name}, GPU"] = of_gpu(lambda: strobe.torch.attention(q, k, v, mask=mask))
    _few_queries.FEW_QUERIES = chosen
    bias = as_bias(mask, queries)
    cell["bias, GPU"] = of_gpu(lambda: strobe.torch.attention(q, k, v, bias=bias))
    return cell


def as_bias(mask, queries):
    bias = torch.zeros(mask.shape, device="cuda").masked_fill(~mask, -torch.inf)
    return bias[:, None, None].expand(-1, 1, queries, -1)


def many_queries(tokens):
    q, k, v, d_o = (draw(2, tokens, 16, 128) for _ in range(4))
    mask = torch.arange(tokens, device="cuda") < torch.tensor([[tokens], [tokens // 2]], device="cuda")
    ways = {
        "mask": {"mask": mask},
        "bias": {"bias": as_bias(mask, tokens)},
        "used lengths": {"seqused_k": mask.sum(1, dtype=torch.int32)},
    }
    cell = {"batch": 2, "heads": 16, "tokens": tokens}
    for name, options in ways.items():
        cell[f"{name}, forward"] = microseconds(lambda: strobe.torch.attention(q, k, v, **options))  # noqa: B023
        inputs = [x.detach().requires_grad_() for x in (q, k, v)]
        with torch.enable_grad():
            cell[f"{name}, both"] = microseconds(
                lambda: torch.autograd.grad(strobe.torch.attention(*inputs, **options), inputs, d_o)  # noqa: B023
            )
    return cell


def main():
    torch.manual_seed(0)
    report = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    with torch.no_grad():
        report["one query"] = [one_query(*x) for x in ((8, 32, 4096), (8, 8, 4096), (8, 8, 1024), (1, 8, 4096))]
        report["few queries"] = [few_queries(kv, n) for kv in (32, 8) for n in (1, 4, 16, 64, 256)]
        report["many queries"] = [many_queries(tokens) for tokens in (1024, 4096, 8192)]
    Path(sys.argv[1]).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
