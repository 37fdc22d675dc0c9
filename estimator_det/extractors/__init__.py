"""Feature extractors by type string.

Importing the package imports every module below it, so that a component in a new file is
registered.
"""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
