# SPDX-License-Identifier: Apache-2.0
"""Steps of examples/gpt's model on long sequences: FSDP, and each rank a part of every sequence."""

import statistics
import sys
import time
from pathlib import Path
from typing import Any

import strobe.torch
import torch
from ranks.group import Ranks
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples" / "gpt"))
import parallel
from model import Gpt

CHARACTERS, STEPS = 256, 4
MODEL = {"width": 1024, "heads": 8, "layers": 4}
TINY_MODEL = {"width": 32, "heads": 2, "layers": 2}


def _alone(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return strobe.torch.attention(q, k, v, causal=True)


class Training:
    """Steps on a sequence of random characters, by all ranks together or by each alone."""

    def __init__(self, ranks: Ranks, context: int, together: bool) -> None:
        self.ranks, self.context = ranks, context
        self.shared = parallel.SharedSequences() if together else None
        torch.manual_seed(0)
        size = MODEL if ranks.on_gpus else TINY_MODEL
        attention = _alone if self.shared is None else self.shared.attention
        model: nn.Module = Gpt(CHARACTERS, context, attention, **size).to(ranks.device)
        self.model = model if self.shared is None else parallel.distribute(model, "fsdp")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        generator = torch.Generator().manual_seed(1)
        self.text = torch.randint(CHARACTERS, (1, context + 1), generator=generator)

    def step(self) -> Tensor:
        """The loss of this rank's part."""
        inputs, targets, positions = self.text[:, :-1], self.text[:, 1:], None
        if self.shared is not None:
            inputs, targets = self.shared.share(inputs), self.shared.share(targets)
            positions = self.shared.positions(self.ranks.device)
        self.optimizer.zero_grad()
        with torch.autocast(self.ranks.device.type, torch.bfloat16, enabled=self.ranks.on_gpus):
            logits = self.model(inputs.to(self.ranks.device), positions).flatten(0, 1)
            loss = cross_entropy(logits, targets.to(self.ranks.device).flatten())
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def measured(self) -> dict[str, Any]:
        loss = self.step()
        if self.ranks.on_gpus:
            torch.cuda.reset_peak_memory_stats()
        seconds = []
        for _ in range(STEPS):
            self.ranks.synchronize()
            start = time.perf_counter()
            loss = self.step()
            self.ranks.synchronize()
            seconds.append(time.perf_counter() - start)
        memory = torch.cuda.max_memory_allocated() if self.ranks.on_gpus else 0
        slowest, most, _ = self.ranks.largest([statistics.median(seconds), memory, loss.item()])
        return {"tokens/s": round(self.context / slowest), "GiB a GPU": round(most / (1 << 30), 2)}


def trained(ranks: Ranks, context: int, together: bool) -> dict[str, Any]:
    """Tokens in a second and the most memory of a GPU. Nothing is left of the model, which holds the process group."""
    model = MODEL if ranks.on_gpus else TINY_MODEL
    who = f"{ranks.world} GPUs, FSDP" if together else "one GPU"
    return {"context": context, "who": who} | model | Training(ranks, context, together).measured()
