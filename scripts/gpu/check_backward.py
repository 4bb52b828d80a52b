#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks every variant that pack_backward.py compiled against float64, over shapes that are no multiples of tiles."""

import sys

import torch
from run_backward import Backward, Options, Variants

# batch, heads, heads_kv, seqlen_q, seqlen_k
SHAPES = [
    (2, 2, 2, 256, 256),
    (1, 4, 2, 320, 448),
    (2, 6, 2, 200, 333),
    (1, 2, 1, 77, 65),
    (1, 3, 3, 129, 1),
    (1, 2, 2, 1, 300),
    (3, 8, 8, 512, 512),
    (1, 2, 2, 450, 130),
    (2, 16, 4, 1024, 1024),
]


def reference(q, k, v, do, causal, scale):
    q, k, v, do = (x.double().transpose(1, 2) for x in (q, k, v, do))
    group = q.shape[1] // k.shape[1]
    q, k, v = (x.clone().requires_grad_() for x in (q, k, v))
    kk, vv = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = q @ kk.transpose(-1, -2) * scale
    sq, sk = s.shape[-2:]
    if causal:
        hidden = torch.ones(sq, sk, dtype=torch.bool, device=q.device).tril(sk - sq).logical_not()
        s = s.masked_fill(hidden, -torch.inf)
    lse = torch.logsumexp(s, -1)
    p = torch.where(
        torch.isneginf(lse)[..., None], 0.0, torch.exp(s - torch.where(torch.isneginf(lse), 0.0, lse)[..., None])
    )
    o = p @ vv
    grads = torch.autograd.grad(o, (q, k, v), do)
    return o.transpose(1, 2).detach(), lse.detach(), [x.transpose(1, 2) for x in grads]


def errors(got, want, keys):
    """Largest error over the largest value, and the same of root mean squares. Of few keys, gradients cancel."""
    difference = (got.double() - want).abs()
    least = 1.0 if keys < 8 else 1e-9
    size = max(want.abs().max().item(), least)
    rms = max(want.pow(2).mean().sqrt().item(), least)
    return difference.max().item() / size, difference.pow(2).mean().sqrt().item() / rms


def main():
    variants = Variants(sys.argv[1])
    torch.manual_seed(1)
    failures = 0
    for d in (64, 128, 256):
        for name in variants.names(d):
            worst = 0.0
            config = variants.find(name, set())["config"]
            roles = config["by_roles"]
            dtype = torch.bfloat16 if config["element"] == "bf16" else torch.float16
            for causal in (False, True):
                for b, h, hk, sq, sk in SHAPES:
                    q, do = (torch.randn(b, sq, h, d, device="cuda", dtype=dtype) for _ in range(2))
                    k, v = (torch.randn(b, sk, hk, d, device="cuda", dtype=dtype) for _ in range(2))
                    o, lse, want = reference(q, k, v, do, causal, d**-0.5)
                    o, lse = o.to(dtype).contiguous(), lse.float().contiguous()
                    got = [torch.full_like(x, float("nan")) for x in (q, k, v)]
                    call = Backward(
                        variants,
                        name,
                        q,
                        k,
                        v,
                        o,
                        lse,
                        do,
                        *got,
                        Options("bottom_right" if causal else None),
                        **({"ds_mb": 1} if roles and b > 1 else {}),
                    )
                    call.run()
                    torch.cuda.synchronize()
                    if roles:
                        first = [x.clone() for x in got]
                        for _ in range(4):
                            call.run()
                            if not all(torch.equal(x, y) for x, y in zip(first, got, strict=True)):
                                failures += 1
                                print("NOT REPEATABLE", name, causal, (b, h, hk, sq, sk))
                    for n, g, w in zip(("dq", "dk", "dv"), got, want, strict=True):
                        top, rms = errors(g, w, sk)
                        worst = max(worst, rms)
                        if not (top < 0.03 and rms < 0.01):
                            failures += 1
                            print(
                                f"WRONG {name} causal={causal} {(b, h, hk, sq, sk)} {n}: "
                                f"max {top:.4f} rms {rms:.4f} nan {g.isnan().sum().item()}"
                            )
                            if failures > 12:
                                sys.exit(1)
            print(f"{name}: worst rms {worst:.5f}", flush=True)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
