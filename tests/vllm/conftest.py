# SPDX-License-Identifier: Apache-2.0
"""What lies beside the tests, the float64 reference of the Python tests, and vLLM's contract where vLLM is missing."""

import importlib.util
import sys
from functools import cache
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python")]

if importlib.util.find_spec("vllm") is None:
    import contract
    import mla_contract

    contract.install()
    mla_contract.install()
    collect_ignore = ["test_contract.py", "test_mla_models.py", "test_models.py", "test_selection.py", "test_server.py"]
else:
    import installed

    collect_ignore = [] if installed.HAS_MLA else ["test_mla.py", "test_mla_models.py"]


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """The folder of a model by its name, made once."""
    from models import make

    folder = tmp_path_factory.mktemp("models")
    text = HERE.parents[1] / "docs" / "algorithm.md"
    return cache(lambda name, sharpness=3.0: make(name, folder, text, sharpness))


@pytest.fixture(scope="session")
def own(model):
    """Runs on vLLM's own backend, once each."""
    from runs import generate

    return cache(lambda name, sharpness=3.0: generate(model(name, sharpness), "own"))


DEVICES = [("cuda", torch.bfloat16), ("cuda", torch.float16)]
if not torch.cuda.is_available():
    DEVICES = [("cpu", torch.float32), ("cpu", torch.bfloat16)]


@pytest.fixture(params=DEVICES, ids=lambda pair: f"{pair[0]}-{str(pair[1])[6:]}")
def place(request):
    return {"device": request.param[0], "dtype": request.param[1]}
