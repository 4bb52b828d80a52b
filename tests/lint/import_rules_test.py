# SPDX-License-Identifier: Apache-2.0
"""Tests of scripts/import_rules.py on packages made for them: `python3 tests/lint/import_rules_test.py`."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from import_rules import check_imports

ALLOWED = {
    "__init__.py": "from strobe._attention import attention\nfrom strobe._core import version\n",
    "_core.pyi": "from strobe._options import Options\n",
    "_options.py": "from typing import TypedDict\n",
    "_shapes.py": "import numpy as np\nfrom strobe import _core\n",
    "_frameworks/__init__.py": "def load():\n    from strobe._frameworks.torch import Torch\n",
    "_frameworks/torch.py": "import torch\nfrom strobe._shapes import shape_of\n",
    "_forward.py": "from strobe._frameworks import framework_of\n",
    "torch/__init__.py": "from .functional import attention\n",
    "torch/functional.py": "from strobe._forward import forward\nfrom . import ops\n",
    "torch/ops.py": "from strobe import _core\n",
    "_attention.py": "def attention():\n    from strobe import torch\n",
    "integrations/__init__.py": "",
    "integrations/library.py": "import strobe\nfrom strobe.torch.ops import rows\n",
}


class ImportRules(unittest.TestCase):
    def complaints(self, **changed):
        """Of the package above with other files, by their names without the suffix."""
        files = ALLOWED | {f"{name.replace('__of__', '/')}.py": text for name, text in changed.items()}
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                path = Path(folder, "strobe", name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            return check_imports(folder)

    def test_what_is_allowed(self):
        self.assertEqual(self.complaints(), [])

    def test_imports_of_layers_above(self):
        for text in (
            "from strobe._attention import attention\n",
            "def late():\n    from strobe import _attention\n",
            "from ._attention import attention\n",
            "if True:\n    import strobe._attention\n",
        ):
            with self.subTest(text):
                above = "strobe._forward: imports strobe._attention, which is not in a layer below\n"
                self.assertEqual(self.complaints(_forward=text)[0], above)

    def test_public_names_are_above_what_they_are_made_of(self):
        complaints = self.complaints(_forward="import strobe\n")
        self.assertEqual(complaints[0], "strobe._forward: imports strobe, which is not in a layer below\n")
        self.assertEqual(len(complaints), 2)  # and a circle

    def test_circles_within_a_package(self):
        text = "def late():\n    from strobe.torch.functional import attention\n"
        circles = self.complaints(torch__of__ops=text)
        self.assertEqual(len(circles), 1)
        self.assertRegex(circles[0], r"a circle of imports: (strobe\.torch\.(functional|ops) -> ){2}strobe\.torch\.")

    def test_a_package_is_imported_with_its_modules(self):
        complaints = self.complaints(_forward="from strobe.torch.ops import rows\n")
        above = [
            f"strobe._forward: imports {name}, which is not in a layer below\n"
            for name in ("strobe.torch", "strobe.torch.ops")
        ]
        self.assertEqual(complaints[:2], above)

    def test_modules_without_a_layer(self):
        self.assertEqual(self.complaints(_new=""), ["strobe._new: belongs to no layer of scripts/import_rules.py\n"])


if __name__ == "__main__":
    unittest.main()
