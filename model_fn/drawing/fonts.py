"""The font of pictures."""

from __future__ import annotations

import os
from typing import Any

from PIL import ImageFont


def sans(pixels: int) -> Any:
    """DejaVu Sans with letters of this size; it is part of matplotlib and covers most alphabets."""
    import matplotlib

    path = os.path.join(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")
    # The other engine of Pillow, which not all machines have, fails for control characters.
    return ImageFont.truetype(path, pixels, layout_engine=ImageFont.Layout.BASIC)
