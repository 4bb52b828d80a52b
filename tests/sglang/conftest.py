# SPDX-License-Identifier: Apache-2.0
"""SGLang without its kernels, what lies beside the tests, and the float64 reference of the Python tests.

Where there is a GPU the layers are tested on it. The engine, which needs SGLang's kernels there, runs on CPUs alone.
"""

import os
import sys
from functools import cache
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python"), str(HERE.parent / "vllm"), str(HERE / "standins")]
if "SGLANG_SITE" in os.environ:  # a folder of SGLang's modules (scripts/gpu/sglang_site.sh), behind the machine's own
    sys.path += [os.environ["SGLANG_SITE"], str(HERE.parents[1] / "python" / "sglang_backend")]
os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin take a busy machine many times as long

if torch.cuda.is_available():
    collect_ignore = ["test_models.py", "test_mla_models.py"]
else:
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"


@pytest.fixture(autouse=True)
def _device():
    """Tensors are made where the layers run."""
    from pools import DEVICE

    with torch.device(DEVICE):
        yield


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
