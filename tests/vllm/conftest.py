# SPDX-License-Identifier: Apache-2.0
"""What lies beside the tests, the float64 reference of the Python tests, and vLLM's contract where vLLM is missing."""

import importlib.util
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python")]

if importlib.util.find_spec("vllm") is None:
    import contract
    import mla_contract

    contract.install()
    mla_contract.install()
    collect_ignore = ["test_contract.py", "test_mla_models.py", "test_models.py", "test_server.py"]
