# SPDX-License-Identifier: Apache-2.0
"""Generates greedily by SGLang and prints what came out: engine.py SETTINGS, JSON of `Settings`.

SGLang's scheduler, which runs the model, is a process of its own that imports this file first.
"""

import json
import os
import sys
import time
from dataclasses import dataclass, field


@dataclass
class Settings:
    """A run. `engine` are arguments of sglang.Engine beside the model's folder."""

    model: str
    prompts: list[list[int]]
    backend: str = "strobe"
    tokens: int = 24
    turns: int = 2
    engine: dict = field(default_factory=dict)


ZERO = os.environ.get("ATTENTION_IS_ZERO")
"""The layers that give zeros: all, or of a model with latent rows the absorbed ones or those with own keys."""

if ZERO:
    from strobe_sglang.backend import StrobeAttentionBackend

    attend = StrobeAttentionBackend.forward_extend

    def zeros(self, q, k, v, layer, *others, **named):
        if ZERO not in ("all", "absorbed" if layer.tp_k_head_num == 1 else "own"):
            return attend(self, q, k, v, layer, *others, **named)
        return q.new_zeros(q.shape[0], layer.tp_q_head_num * layer.v_head_dim)

    StrobeAttentionBackend.forward_extend = zeros


def run(settings: Settings) -> dict:
    import sglang

    engine = sglang.Engine(
        model_path=settings.model, device="cpu", attention_backend=settings.backend, **settings.engine
    )
    sampling = {"temperature": 0.0, "max_new_tokens": settings.tokens, "ignore_eos": True}
    turns, seconds = [], []
    for _ in range(settings.turns):
        start = time.perf_counter()
        answers = engine.generate(input_ids=settings.prompts, sampling_params=sampling, return_logprob=True)
        seconds.append(time.perf_counter() - start)
        turns.append(answers)
    backend = engine.get_server_info()["attention_backend"]
    engine.shutdown()
    return {
        "backend": backend,
        "tokens": [[answer["output_ids"] for answer in turn] for turn in turns],
        "logprobs": [[[x[0] for x in a["meta_info"]["output_token_logprobs"]] for a in turn] for turn in turns],
        "cached": [answer["meta_info"]["cached_tokens"] for answer in turns[-1]],
        "seconds": seconds,
    }


if __name__ == "__main__":
    result = run(Settings(**json.loads(sys.argv[1])))
    print(f"\n{json.dumps(result)}", flush=True)
