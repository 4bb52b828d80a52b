#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What each option costs on a GPU, and what the peers that have it take in the same run: options.py [--json FILE]
[--head-dims 64,128] [--masks full,causal] [--seqlen 4096] [--batch 4] [--heads 16] [--rounds 4] [--flex]

Strobe by strobe.torch.attention; cuDNN, FlashAttention-2 and memory-efficient attention by PyTorch's
scaled_dot_product_attention; with --flex also FlexAttention, which compiles each call for some ten seconds. bfloat16;
medians between CUDA events, in turns. A forward is a replayed CUDA graph, a backward torch.autograd.grad. Results are
compared with one another first, but for dropout, where each library draws its own numbers.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import strobe.torch
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "gpu"))
from timing import captured, launches_for, median_milliseconds

CAP, DROPOUT, WINDOW = 30.0, 0.1, 1024
SDPA = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash_attention_2": SDPBackend.FLASH_ATTENTION,
    "memory_efficient": SDPBackend.EFFICIENT_ATTENTION,
}

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Of q, k and v, each [batch, seqlen, heads, head_dim]."""


@dataclass
class Option:
    """Arguments for each library; None: it does not have the option. `leaves`: what else gets a gradient."""

    name: str
    strobe: dict[str, Any]
    sdpa: dict[str, Any] | None = None
    flex: dict[str, Any] | None = None
    leaves: list[Tensor] = field(default_factory=list)
    random: bool = False


def options_of(heads: int, seqlen: int, causal: bool) -> list[Option]:
    slopes = torch.exp2(-torch.arange(1, heads + 1, device="cuda") * 8.0 / heads)
    bias = torch.randn(1, heads, seqlen, seqlen, device="cuda", dtype=torch.bfloat16)
    learned = bias.clone().requires_grad_()
    hidden = torch.ones(seqlen, seqlen, device="cuda", dtype=torch.bool).triu(1)
    masked = bias.masked_fill(hidden, float("-inf")) if causal else bias  # PyTorch takes one mask
    options = [
        Option("plain", {}, {"is_causal": causal}, {}),
        Option("softcap", {"softcap": CAP}, flex={"score_mod": lambda s, *_: CAP * torch.tanh(s / CAP)}),
        Option(
            "alibi",
            {"alibi_slopes": slopes},
            flex={"score_mod": lambda s, _b, h, q, k: s - slopes[h] * (q - k).abs()},
        ),
        Option(
            "bias",
            {"bias": bias},
            {"attn_mask": masked},
            {"score_mod": lambda s, _b, h, q, k: s + bias[0, h, q, k]},
        ),
        Option("bias and its gradient", {"bias": learned}, leaves=[learned]),
        Option("dropout", {"dropout": DROPOUT}, {"is_causal": causal, "dropout_p": DROPOUT}, random=True),
    ]
    if causal:
        options.append(Option("window", {"window": (WINDOW - 1, 0)}, flex={"window": WINDOW}))
    return options


def of_sdpa(backend: SDPBackend, arguments: dict[str, Any], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with sdpa_kernel(backend):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return scaled_dot_product_attention(q, k, v, **arguments).transpose(1, 2)


def of_flex(causal: bool, seqlen: int, arguments: dict[str, Any]) -> Attention:
    torch.compiler.reset()
    window = arguments.get("window", seqlen)
    block_mask = None
    if causal:

        def visible(_b: Tensor, _h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return (q >= k) & (q - k < window)

        block_mask = create_block_mask(visible, None, None, seqlen, seqlen, device="cuda")
    compiled = torch.compile(flex_attention, dynamic=False)

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return compiled(q, k, v, score_mod=arguments.get("score_mod"), block_mask=block_mask).transpose(1, 2)

    return attention


def libraries(option: Option, causal: bool, seqlen: int, with_flex: bool) -> dict[str, Attention]:
    calls: dict[str, Attention] = {"strobe": partial(strobe.torch.attention, causal=causal, **option.strobe)}
    if option.sdpa is not None:
        calls |= {name: partial(of_sdpa, backend, option.sdpa) for name, backend in SDPA.items()}
    if option.flex is not None and with_flex:
        calls["flex_attention"] = of_flex(causal, seqlen, option.flex)
    return calls


def check(option: Option, results: dict[str, list[Tensor]]) -> None:
    wanted = results["strobe"]
    for name, result in results.items():
        for i, (x, y) in enumerate(zip(result, wanted, strict=True)):
            error = (x.float() - y.float()).abs().max() / y.float().abs().max()
            if not option.random and not error < 0.05:  # NaN fails, too
                raise SystemExit(f"{option.name}: {name} and Strobe differ by {error:.3f} of the largest of result {i}")


def measure(option: Option, causal: bool, head_dim: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds by pass and library, and why a library has none."""
    batch, seqlen, heads = arguments.batch, arguments.seqlen, arguments.heads
    shape = (batch, seqlen, heads, head_dim)
    *inputs, d_o = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    leaves = [x.requires_grad_() for x in inputs] + option.leaves
    forwards, backwards, results, absent = {}, {}, {}, {}
    for name, attention in libraries(option, causal, seqlen, arguments.flex).items():
        try:
            o = attention(*inputs)
            backward = partial(torch.autograd.grad, o, leaves, d_o, retain_graph=True)
            results[name] = [o.detach(), *backward()]
            with torch.no_grad():
                forwards[name] = captured(partial(attention, *inputs))
        except RuntimeError as error:
            absent[name] = str(error).splitlines()[0][:120]
            torch.cuda.synchronize()
            continue
        backwards[name] = backward
    check(option, results)
    flops = 4 * batch * heads * seqlen**2 * head_dim
    with torch.no_grad():
        forward = median_milliseconds(forwards, arguments.rounds, launches_for(flops))
    backward = median_milliseconds(backwards, arguments.rounds, launches_for(2.5 * flops))
    return {"forward_ms": forward, "backward_ms": backward, "absent": absent}


def show(row: dict[str, Any], plain: dict[str, Any]) -> str:
    texts = []
    for kind in ("forward_ms", "backward_ms"):
        times = row[kind]
        share = times["strobe"] / plain[kind]["strobe"]
        peers = {name: ms for name, ms in times.items() if name != "strobe"}
        best = min(peers, key=lambda name: peers[name], default=None)
        beside = f"{peers[best] / times['strobe']:.2f} x {best}" if best else "no peer"
        texts.append(f"{kind[:-3]:8} {times['strobe']:7.3f} ms {share:5.2f} of plain, {beside:24}")
    return f"d{row['head_dim']:<4}{row['mask']:7}{row['option']:22} " + " | ".join(texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where the rows are written")
    parser.add_argument("--head-dims", default="64,128")
    parser.add_argument("--masks", default="full,causal")
    parser.add_argument("--seqlen", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--flex", action="store_true", help="FlexAttention, too")
    parser.add_argument("--only", help="names of options, separated by commas; plain is always measured")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", category=UserWarning)  # PyTorch's reasons for what a backend lacks
    names = ("batch", "seqlen", "heads")
    record = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    record |= {name: getattr(arguments, name) for name in names} | {"rows": []}
    for head_dim in map(int, arguments.head_dims.split(",")):
        for mask in arguments.masks.split(","):
            plain = None
            for option in options_of(arguments.heads, arguments.seqlen, mask == "causal"):
                if arguments.only and option.name not in ("plain", *arguments.only.split(",")):
                    continue
                row = {"head_dim": head_dim, "mask": mask, "option": option.name}
                row |= measure(option, mask == "causal", head_dim, arguments)
                plain = plain or row
                record["rows"].append(row)
                print(show(row, plain), flush=True)
                if arguments.json:  # after each row, so that a run that is cut leaves what it has
                    arguments.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
