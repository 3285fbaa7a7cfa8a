"""A font for pictures, also on a machine that has none."""

from functools import partial
from pathlib import Path

import matplotlib as mpl
import pytest
import resvg_py


@pytest.fixture
def font(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw pictures with one bundled font, whatever fonts and settings the machine has."""
    path = Path(mpl.get_data_path(), "fonts", "ttf", "DejaVuSansMono.ttf")
    alone = partial(resvg_py.svg_to_bytes, skip_system_fonts=True, font_files=[str(path)])
    monkeypatch.setattr(resvg_py, "svg_to_bytes", alone)
