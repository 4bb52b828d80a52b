# SPDX-License-Identifier: Apache-2.0
"""Programs that serve a model by vLLM on one backend, in a process of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PLUGINS = {"strobe": "strobe", "own": "none", "zeros": "none"}  # of VLLM_PLUGINS; "none" is no plug-in's name
ENGINE = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 1024,
    "block_size": 32,
    "max_num_batched_tokens": 64,
    "max_num_seqs": 16,
    "enable_chunked_prefill": True,
    "enable_prefix_caching": True,
}
"""Prompts of more than 64 tokens take several steps, each beside decodes of the others."""
MINUTES = 10


def environment(backend: str, **variables: str) -> dict[str, str]:
    """Variables of a process that loads nothing from outside and reports nothing."""
    offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    # vLLM's threads spin at every barrier, which takes a busy machine a hundred times as long as one thread.
    cpu = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    return os.environ | offline | cpu | {"VLLM_PLUGINS": PLUGINS[backend], "VLLM_LOGGING_LEVEL": "WARNING"} | variables


def generate(model: Path, backend: str, variables: dict[str, str] | None = None, **settings) -> dict:
    """What generate.py prints of a run."""
    settings = {"model": str(model), "backend": backend} | settings
    settings["engine"] = ENGINE | settings.get("engine", {})
    result = subprocess.run(
        [sys.executable, HERE / "generate.py", json.dumps(settings)],
        env=environment(backend, VLLM_ENABLE_V1_MULTIPROCESSING="0", **(variables or {})),
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=60 * MINUTES,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    # An engine with several workers may log to the same stream when it ends.
    return json.loads(next(line for line in result.stdout.splitlines() if line.startswith("{")))
