"""Coarse pictures: drawing pixels is most of the time."""

import pytest

DPI = 60


@pytest.fixture(autouse=True)
def coarse(monkeypatch):
    """Saves every picture with few pixels; what is drawn, and the PDF, are the same."""
    from matplotlib.figure import Figure

    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, *place, **options: save(figure, *place, **options, dpi=DPI))
