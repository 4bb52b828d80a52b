# SPDX-License-Identifier: Apache-2.0
"""Generates greedily by vLLM in this process and prints what came out: generate.py SETTINGS, JSON of `Settings`."""

import json
import random
import sys
import time
from dataclasses import dataclass, field

import torch
from models import VOCABULARY

ZEROS = {
    "CPU_ATTN": "zeros_backend.Backend",
    "CPU_MLA": "zeros_backend.MLABackend",
    "AMX_MLA": "zeros_backend.MLABackend",
}


@dataclass
class Settings:
    """A run. `engine` are arguments of vllm.LLM beside the model's folder."""

    model: str
    backend: str = "strobe"  # or "own" or "zeros"
    tokens: int = 24
    turns: int = 2
    prompts: list[list[int]] = field(default_factory=list)
    engine: dict = field(default_factory=dict)


def prompts() -> list[list[int]]:
    """Of 1 to 300 tokens; three begin with the same 70."""
    draw = random.Random(3)
    lengths = (1, 2, 17, 31, 32, 33, 64, 100, 129, 300)
    alone = [[draw.randrange(3, VOCABULARY) for _ in range(length)] for length in lengths]
    prefix = [draw.randrange(3, VOCABULARY) for _ in range(70)]
    return alone + [prefix + [draw.randrange(3, VOCABULARY) for _ in range(length)] for length in (5, 20, 60)]


def implementations(model: torch.nn.Module) -> list[str]:
    """The classes that compute the attention of a model's layers."""
    found = {type(layer.impl).__qualname__ for layer in model.modules() if hasattr(layer, "impl")}
    return sorted(found)


def prefills(model: torch.nn.Module) -> list[str]:
    """The classes that compute the attention of prompts in a model's layers of MLA."""
    layers = (layer for layer in model.modules() if getattr(layer, "prefill_backend", None) is not None)
    return sorted({type(layer.prefill_backend).__qualname__ for layer in layers})


def sharing(model: torch.nn.Module) -> list[int]:
    """How many ranks share the keys of a model's layers."""
    return sorted({layer.impl.dcp_world_size for layer in model.modules() if hasattr(layer, "impl")})


def run(settings: Settings) -> dict:
    from vllm import LLM, SamplingParams
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    if settings.backend == "zeros":
        for name, backend in ZEROS.items():
            register_backend(AttentionBackendEnum[name], backend)
    llm = LLM(settings.model, **settings.engine)
    sampling = SamplingParams(temperature=0.0, max_tokens=settings.tokens, ignore_eos=True, logprobs=1)
    batch = [{"prompt_token_ids": prompt} for prompt in settings.prompts or prompts()]
    turns, seconds = [], []
    for _ in range(settings.turns):
        start = time.perf_counter()
        answers = llm.generate(batch, sampling, use_tqdm=False)
        seconds.append(time.perf_counter() - start)
        turns.append([answer.outputs[0] for answer in answers])
    return {
        "implementations": llm.apply_model(implementations)[0],
        "prefills": llm.apply_model(prefills)[0],
        "sharing": llm.apply_model(sharing),
        "tokens": [[list(answer.token_ids) for answer in turn] for turn in turns],
        "logprobs": [
            [[next(iter(step.values())).logprob for step in answer.logprobs] for answer in turn] for turn in turns
        ],
        "cached": [answer.num_cached_tokens for answer in answers],
        "seconds": seconds,
        "threads": torch.get_num_threads(),
    }


if __name__ == "__main__":
    print(json.dumps(run(Settings(**json.loads(sys.argv[1])))))
