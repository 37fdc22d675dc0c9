"""Entry point of `python -m estimator_det.model_main`."""

from __future__ import annotations

import sys

from estimator_det.programs.model_main import main

if __name__ == "__main__":
    sys.exit(main())
