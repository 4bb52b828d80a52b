# SPDX-License-Identifier: Apache-2.0
"""What context parallelism would take on more GPUs than there are here, by the model that scheme="auto" asks.

    python bench/context_parallel_model.py docs/benchmarks/context_parallel.json

Shares of ideal, one GPU's time for the whole sequence divided by the number of GPUs: 32 query heads, 8 key heads,
head_dim 128, 16 bits, causal, zigzag, on H100s. "two levels" is heads within hosts of 8, gather between them.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

from strobe.torch.context_parallel.keys import Sight
from strobe.torch.context_parallel.layout import layout_of
from strobe.torch.context_parallel.model import INFINIBAND, NVLINK, PASSES, CallSize, one_device, pass_times

SIZE = CallSize(1, 32, 8, 128, 128, 2, Sight(causal=True))
TOKENS, GPUS, HOST = (8192, 32768, 131072), (2, 4, 8, 16, 32, 64), 8


def two_levels(gpus, rows):
    """Seconds by pass: gather of an eighth of the heads between hosts, and all-to-all within them."""
    hosts = layout_of("zigzag", gpus // HOST, (rows,))
    share = replace(SIZE, heads_q=SIZE.heads_q // HOST, heads_kv=SIZE.heads_kv // HOST)
    between = pass_times(hosts, share, INFINIBAND)["gather"]
    within = rows / gpus * (HOST - 1) / HOST * (SIZE.query_bytes + SIZE.key_bytes) / NVLINK.bytes
    return {name: seconds + within for name, seconds in between.items()}


def computed():
    rows_of_table = []
    for tokens in TOKENS:
        for gpus in GPUS:
            rows = tokens * gpus
            layout, one = layout_of("zigzag", gpus, (rows,)), one_device(SIZE, (rows,))
            for link in (NVLINK, INFINIBAND):
                schemes = pass_times(layout, SIZE, link)
                if link is INFINIBAND and gpus > HOST:
                    schemes["two_levels"] = two_levels(gpus, rows)
                for scheme, seconds in schemes.items():
                    shares = {name: one[name] / gpus / seconds[name] for name in PASSES}
                    shares["both"] = sum(one.values()) / gpus / sum(seconds.values())
                    row = {"tokens": tokens, "GPUs": gpus, "link": link.name, "scheme": scheme}
                    rows_of_table.append(row | {name: round(x, 3) for name, x in shares.items()})
    return {"rows": rows_of_table}


if __name__ == "__main__":
    lines = ",\n".join("  " + json.dumps(row) for row in computed()["rows"])
    Path(sys.argv[1]).write_text(f'{{"rows": [\n{lines}\n]}}\n', encoding="utf-8")
