"""Entry point of `estimator-det` and `python -m estimator_det`."""

from __future__ import annotations

import sys

from estimator_det.programs.cli import main

if __name__ == "__main__":
    sys.exit(main())
