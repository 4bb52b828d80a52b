# SPDX-License-Identifier: Apache-2.0
"""Runs of SGLang's engine on tiny models: what it is asked, and what it answers."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import torch
import transformers
from models import CONTEXT, HEADS, LAYERS, VOCABULARY, WIDTH, make
from safetensors.torch import load, save_file

HERE = Path(__file__).parent
MINUTES = 10
TOKENS = 24
ENGINE = {
    "dtype": "float32",
    "chunked_prefill_size": 64,
    "max_running_requests": 16,
    "max_total_tokens": 8192,
    "mem_fraction_static": 0.3,
    "log_level": "error",
}
"""Prompts of more than 64 tokens take several steps."""


def prompts() -> list[list[int]]:
    """Of 1 to 300 tokens; three begin with the same 70."""
    draw = random.Random(3)

    def tokens(count):
        return [draw.randrange(3, VOCABULARY) for _ in range(count)]

    alone = [tokens(length) for length in (1, 2, 17, 31, 32, 33, 64, 100, 129, 300)]
    prefix = tokens(70)
    return alone + [prefix + tokens(length) for length in (5, 20, 60)]


_LATENT = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 512,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "max_position_embeddings": CONTEXT,
    "kv_lora_rank": 64,
    "qk_rope_head_dim": 32,
    "first_k_dense_replace": LAYERS,
    "moe_layer_freq": 1,
    "moe_intermediate_size": 64,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "rope_parameters": {  # without which SGLang's model does not run on a CPU
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": CONTEXT // 4,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
}
_V3 = _LATENT | {
    "q_lora_rank": 96,
    "qk_nope_head_dim": 32,
    "v_head_dim": 48,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
}
LATENT = {
    "deepseek_v2": lambda: transformers.DeepseekV2Config(
        **_LATENT, q_lora_rank=None, qk_nope_head_dim=64, v_head_dim=64, topk_method="greedy"
    ),
    "deepseek_v3": lambda: transformers.DeepseekV3Config(**_V3),
    "deepseek_v3_experts": lambda: transformers.DeepseekV3Config(**_V3 | {"first_k_dense_replace": 1}),
}
"""Models with latent rows: queries that are compressed and that are not, values as wide as the keys' first parts and
wider, and three layers of experts."""


def make_model(name: str, folder: Path) -> Path:
    config = LATENT[name]() if name in LATENT else None
    path = make(name, folder, HERE.parents[1] / "docs" / "algorithm.md", config=config)
    written = json.loads((path / "config.json").read_text())
    # SGLang reads Gemma 2's activation under a name that transformers has given up.
    written.setdefault("hidden_act", written.get("hidden_activation"))
    (path / "config.json").write_text(json.dumps(written))
    _round_sinks(path / "model.safetensors")
    return path


def _round_sinks(file: Path) -> None:
    """SGLang's gpt-oss holds its sinks in bfloat16 whatever the model's dtype is, as published weights do. Of sinks in
    between, transformers reads other values than SGLang's backends are given, and the logits of these sharp layers
    differ by thousandths: enough to change a token."""
    weights = load(file.read_bytes())
    rounded = {name: x.bfloat16().float() if name.endswith(".sinks") else x for name, x in weights.items()}
    save_file(rounded, file, metadata={"format": "pt"})


def tokens_of_transformers(path: Path) -> list[list[int]]:
    network = transformers.AutoModelForCausalLM.from_pretrained(
        path, attn_implementation="eager", dtype=torch.float32
    ).eval()
    sampling = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False, "pad_token_id": 2}
    with torch.no_grad():
        return [
            network.generate(torch.tensor([prompt]), eos_token_id=None, **sampling)[0, len(prompt) :].tolist()
            for prompt in prompts()
        ]


def generate(path: Path, variables: dict[str, str] | None = None, **settings) -> dict:
    """What engine.py prints of a run."""
    settings = {"model": str(path), "prompts": prompts(), "tokens": TOKENS} | settings
    settings["engine"] = ENGINE | settings.get("engine", {})
    paths = [str(HERE / "standins"), *filter(None, [os.environ.get("PYTHONPATH")])]
    result = subprocess.run(
        [sys.executable, HERE / "engine.py", json.dumps(settings)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | (variables or {}),
        capture_output=True,
        text=True,
        timeout=60 * MINUTES,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return json.loads(result.stdout.splitlines()[-1])


def check(run, tokens, backend="strobe"):
    assert run["backend"] == backend
    assert run["tokens"] == [tokens, tokens]
    assert min(run["cached"][5:]) > 0  # of the prompts that are longer than a page
