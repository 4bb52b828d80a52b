# SPDX-License-Identifier: Apache-2.0
"""The wheel of kernels where it is installed beside Strobe's: the library finds a pack for each device that the wheel
was built for: installed_kernels.py DEVICE..."""

import importlib.metadata
import re
import sys
from pathlib import Path

import strobe
import strobe_kernels

folder = Path(strobe_kernels.__file__).parent
version = importlib.metadata.version("strobe-kernels")
if version != strobe.__version__:
    sys.exit(f"the version of strobe-kernels is {version}, that of strobe {strobe.__version__}")
found = strobe.info()["gpu"]["installed_kernels"]
packs = sorted(f"{device}.archive" for device in sys.argv[1:])
wanted = [rf"{re.escape(str(folder / pack))}: [1-9]\d* kernels, by NVRTC .*" for pack in packs]
if len(found) != len(wanted) or not all(map(re.fullmatch, wanted, found)):
    sys.exit(f"strobe.info() names {found}, and not {', '.join(packs)} of {folder}")
print(*found, sep="\n")
