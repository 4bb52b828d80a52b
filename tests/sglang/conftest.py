# SPDX-License-Identifier: Apache-2.0
"""SGLang on a CPU without its kernels, what lies beside the tests, and the float64 reference of the Python tests."""

import os
import sys
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python"), str(HERE.parent / "vllm"), str(HERE / "standins")]
os.environ |= {"SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin take a busy machine many times as long


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """The folder of a model by its name."""
    import served

    folder = tmp_path_factory.mktemp("models")
    return cache(lambda name: served.make_model(name, folder))


@pytest.fixture(scope="session")
def wanted(model):
    """Greedy tokens by transformers, once for each model."""
    import served

    return cache(lambda name: served.tokens_of_transformers(model(name)))
