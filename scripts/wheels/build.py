# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel of a Python project by its backend, as pip does: build.py FOLDER DIST [NAME=VALUE...]

The settings are scikit-build-core's. What it needs is installed already: there is no isolated environment.
"""

import os
import sys
from pathlib import Path

from scikit_build_core import build

folder, dist, *settings = sys.argv[1:]
dist = Path(dist).resolve()
dist.mkdir(parents=True, exist_ok=True)
os.chdir(folder)
print(dist / build.build_wheel(str(dist), dict(setting.split("=", 1) for setting in settings)))
