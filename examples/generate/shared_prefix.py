# SPDX-License-Identifier: Apache-2.0
"""One step of sequences that begin alike: their shared pages read once for all, or once for each.

    python examples/generate/shared_prefix.py                       # 32 sequences that share 8192 keys
    python examples/generate/shared_prefix.py --prefix 32768

On the GPU if there is one.
"""

import argparse

import strobe
import torch
from measure import DTYPES, check, describe, largest_score, milliseconds, parser, positive, print_table
from torch import Tensor


def cache_of(options: argparse.Namespace, device: str) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """k, v and the options of a call: the pages of the prefix, and for each sequence pages of its own."""
    shared, own = options.prefix // options.page_size, -(-options.own // options.page_size)
    pages = shared + options.batch * own
    shape = (pages, options.page_size, options.heads_kv, options.head_dim)
    k, v = (torch.randn(shape, device=device).to(DTYPES[options.dtype]) for _ in range(2))
    v[:shared] += 1  # so that it shows how much the prefix counts
    table = torch.empty(options.batch, shared + own, dtype=torch.int32)
    table[:, :shared] = torch.arange(shared)
    table[:, shared:] = torch.arange(shared, pages).view(options.batch, own)
    lengths = torch.full((options.batch,), options.prefix + options.own, dtype=torch.int32)
    return k, v, {"page_table": table.to(device), "seqused_k": lengths.to(device)}


def parse() -> argparse.Namespace:
    arguments = parser(__doc__, batch=32)
    arguments.add_argument("--prefix", type=positive, default=8192, help="keys that all sequences share")
    arguments.add_argument("--own", type=positive, default=128, help="keys behind them, of each sequence")
    options = arguments.parse_args()
    if options.prefix < 1 or options.prefix % options.page_size != 0:
        raise SystemExit(f"--prefix {options.prefix} is no multiple of --page-size {options.page_size}")
    return options


def main() -> None:
    options = parse()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    k, v, cache = cache_of(options, device)
    q = torch.randn(options.batch, 1, options.heads, options.head_dim, device=device).to(k.dtype)
    prefix_pages = options.prefix // options.page_size
    calls = {
        "each sequence by itself": lambda: strobe.attention(q, k, v, **cache),
        "the prefix once": lambda: strobe.shared_prefix_attention(q, k, v, prefix_pages=prefix_pages, **cache),
    }
    print(f"{describe(options)}\nkeys of each: {options.prefix:,} shared, {options.own:,} of its own")
    plain, shared = (call() for call in calls.values())
    behind = cache["seqused_k"] - options.prefix
    parts = [
        strobe.attention(q, k, v, page_table=cache["page_table"][:, :prefix_pages].contiguous()),
        strobe.attention(q, k, v, page_table=cache["page_table"][:, prefix_pages:].contiguous(), seqused_k=behind),
    ]
    magnitude = strobe.attention(q, k, v.abs(), **cache)
    check("the prefix once", shared, plain, parts, magnitude, largest_score(q, k), options.prefix + options.own)
    times = milliseconds(calls, options.rounds)
    slowest = max(times.values())
    print_table(
        ["", "ms", "times as fast"],
        [[name, f"{time:.3g}", f"{slowest / time:.1f}"] for name, time in times.items()],
    )


if __name__ == "__main__":
    main()
