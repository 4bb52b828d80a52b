# SPDX-License-Identifier: Apache-2.0
"""The wheels of drop-ins and backends where they are installed beside Strobe's, without what they depend on.

Their modules, entry points and versions are checked, and that what they import from Strobe is in its wheel. Nothing of
them is imported, as PyTorch, vLLM and SGLang are not there.
"""

import importlib.metadata
import importlib.util
import sys
from pathlib import Path

import companions
import strobe

folders = [Path(strobe.__file__).parents[1]]
series = strobe.__version__.rpartition(".")[0]
bad = []
for distribution, (package, entry_points) in companions.COMPANIONS.items():
    installed = importlib.metadata.distribution(distribution)
    if installed.version != strobe.__version__:
        bad.append(f"{distribution}: its version is {installed.version}, that of strobe {strobe.__version__}")
    if f"strobe=={series}.*" not in installed.requires:
        bad.append(f"{distribution}: needs {installed.requires}, and not strobe=={series}.*")
    found = {}
    for point in installed.entry_points:
        found.setdefault(point.group, {})[point.name] = point.value
    if found != entry_points:
        bad.append(f"{distribution}: its entry points are {found}, not {entry_points}")
    modules = {file.parts[0] for file in installed.files if file.suffix == ".py"}
    if modules != {package} or importlib.util.find_spec(package) is None:
        bad.append(f"{distribution}: holds {modules}, not {package}")
    bad += [f"{distribution}: there is no {name}" for name in companions.broken_entry_points(found, folders)]
    bad += [f"{distribution}: there is no {name}" for name in companions.missing(package, folders)]
if bad:
    sys.exit("\n".join(bad))
print(f"beside strobe {strobe.__version__}, by their files: {', '.join(companions.COMPANIONS)}")
