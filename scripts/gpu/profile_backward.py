#!/usr/bin/env python3
"""One call of a variant, for a profiler: FOLDER NAME HEAD_DIM SEQLEN [causal]."""

import sys

import torch
from run_backward import Backward, Variants

folder, name, d, s = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
b, h = max(1, 16384 // s), 2048 // d
q, k, v, o, do = (torch.randn(b, s, h, d, device="cuda", dtype=torch.bfloat16) for _ in range(5))
lse = torch.full((b, h, s), 7.0, device="cuda")
call = Backward(Variants(folder), name, q, k, v, o, lse, do, *(torch.empty_like(x) for x in (q, k, v)), len(sys.argv) > 5)
for _ in range(2):
    call.run()
torch.cuda.synchronize()
