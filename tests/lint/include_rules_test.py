# SPDX-License-Identifier: Apache-2.0
"""Tests of scripts/include_rules.py on trees made for them: `python3 tests/lint/include_rules_test.py`."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from include_rules import ALLOWED, DEEPEST, FORWARD, check_families, check_includes


class IncludeRules(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        for header in (
            "include/strobe/tensor.h",
            "src/call/problem.h",
            "src/cpu/engine.h",
            "src/engine/engine.h",
            "src/api/problem.h",
            "src/kernels/math/philox.h",
            "src/kernels/math/divisor.h",
            "src/kernels/score/mask.h",
            "src/kernels/score/modifiers/bias.h",
            "src/kernels/sm90/forward/config.h",
            "src/kernels/sm90/forward/tile/work.h",
            "src/kernels/sm90/forward/store/output.h",
            "src/kernels/sm90/forward/produce/keys.h",
            "src/kernels/sm90/forward/consume/rings.h",
            "src/kernels/sm80/tile/gemm.h",
        ):
            self.write(header, "#pragma once\n")

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def complaints(self, path, *includes):
        return check_includes(self.root, self.write(path, "// A comment.\n" + "".join(f"{i}\n" for i in includes)))

    def test_what_the_table_allows(self):
        allowed = {
            "src/cpu/plan.cpp": ['"cpu/engine.h"', '"call/problem.h"', '"engine/engine.h"', '"kernels/math/philox.h"'],
            "src/api/plan.cpp": ['"engine/engine.h"', '"strobe/tensor.h"', "<strobe/tensor.h>", "<vector>"],
            "src/kernels/sm90/forward/kernel.h": ['"kernels/score/mask.h"', '"produce/keys.h"', '"consume/rings.h"'],
            "src/kernels/sm90/forward/consume/loop.h": ['"../config.h"', '"../tile/work.h"', '"../store/output.h"'],
            "src/sm90/plan.cpp": ['"kernels/sm90/forward/config.h"', '"kernels/math/divisor.h"'],
            "src/engine/registry.cpp": ['"cpu/engine.h"', '"engine/engine.h"'],
            "tests/cpu/plan_test.cpp": ['"cpu/engine.h"', '"api/problem.h"'],
        }
        for path, includes in allowed.items():
            with self.subTest(path):
                self.assertEqual(self.complaints(path, *(f"#include {name}" for name in includes)), [])

    def test_each_wrong_include_is_named_with_its_line_and_rule(self):
        found = self.complaints("src/api/plan.cpp", '#include "call/problem.h"', '#  include "cpu/engine.h"')
        rule = ", ".join(ALLOWED["src/api"])
        self.assertEqual(found, [f"src/api/plan.cpp:3: includes src/cpu/engine.h, but src/api may include {rule}\n"])

    def test_wrong_includes(self):
        wrong = {
            "include/strobe/plan.h": '"../../src/call/problem.h"',
            "src/call/heads.h": '"api/problem.h"',
            "src/cpu/forward.cpp": '"kernels/math/divisor.h"',
            "src/engine/engine.cpp": '"cpu/engine.h"',
            "src/sm90/plan.cpp": '"kernels/sm80/tile/gemm.h"',
            "src/kernels/score/apply.h": '"kernels/sm90/forward/config.h"',
            "src/kernels/score/softmax.h": '"kernels/score/modifiers/bias.h"',
            "src/kernels/score/modifiers/softcap.h": '"kernels/score/mask.h"',
            "src/kernels/sm90/forward/consume/loop.h": '"../produce/keys.h"',
            "src/kernels/sm90/forward/produce/query.h": '"../consume/rings.h"',
            "src/kernels/sm90/forward/store/lse.h": '"../consume/rings.h"',
            "src/kernels/sm90/tile/gemm.h": '"kernels/sm80/tile/gemm.h"',
            "src/reference/plain/forward.cpp": '"cpu/engine.h"',
            "src/runtime/kernel.cpp": '"call/problem.h"',
            "python/src/module.cpp": '"api/problem.h"',
            "tools/io/npy.cpp": '"call/problem.h"',
            "examples/search/main.cpp": '"cpu/engine.h"',
        }
        for path, include in wrong.items():
            with self.subTest(path):
                self.assertEqual(len(self.complaints(path, f"#include {include}")), 1)

    def test_headers_that_include_one_another(self):
        deepest = DEEPEST[f"{FORWARD}/kernel.h"]
        for number in range(deepest):
            self.write(f"{FORWARD}/tile/{number}.h", f'#include "{number + 1}.h"\n#include "kernels/score/mask.h"\n')
        self.write(f"{FORWARD}/tile/{deepest}.h", "#pragma once\n")
        self.assertEqual(self.complaints(f"{FORWARD}/kernel.h", '#include "tile/2.h"'), [])
        found = self.complaints(f"{FORWARD}/kernel.h", '#include "tile/work.h"', '#include "tile/1.h"')
        row = " -> ".join(["kernel.h", *(f"tile/{number}.h" for number in range(1, deepest + 1))])
        words = f"{deepest + 1} headers include one another, where {deepest} are the most: {row}"
        self.assertEqual(found, [f"{FORWARD}/kernel.h: {words}\n"])

    def test_the_runtime_names_no_family(self):
        text = "// Compiles for sm_90a.\nauto list = sm80::pack();\n"
        found = check_families(self.root, self.write("src/runtime/pack/main.cpp", text))
        self.assertEqual(found, ["src/runtime/pack/main.cpp:2: names a family of kernels\n"])
        self.assertEqual(check_families(self.root, self.write("src/gpu/pack.cpp", text)), [])


if __name__ == "__main__":
    unittest.main()
