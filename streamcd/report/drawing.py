"""Access to matplotlib: new figures in a common style, and their bytes."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec

from ..core.errors import UsageError, escaped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Arguments = ParamSpec("Arguments")

COLORS = (
    "#2563a8",
    "#d1742c",
    "#3d8f5b",
    "#a3417e",
    "#7a6a3a",
    "#4f5d75",
    "#b03a3a",
    "#2f8f9d",
    "#8a63b0",
    "#6b7d2a",
)
_WIDTH = 10.5  # inches
_NAME_HEAD, _NAME_TAIL = 27, 12  # characters kept of a longer name, so that a panel has room

_STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "font.size": 9,
    "lines.linewidth": 1.6,
    "text.usetex": False,
}


def require_matplotlib() -> Any:
    """Return matplotlib, or raise a `UsageError` that names the extra: called before long work that ends in a picture."""
    try:
        import matplotlib
    except ImportError:
        raise UsageError(
            "plots need matplotlib; install it by: pip install 'streamcd[plot]', or pip install '.[plot]' in the directory "
            "of the sources"
        ) from None
    return matplotlib


def styled(draw: Callable[Arguments, Figure]) -> Callable[Arguments, Figure]:
    """Make a function draw in the common style, and raise a `UsageError` that names the extra without matplotlib."""

    @functools.wraps(draw)
    def styled_draw(*args: Arguments.args, **options: Arguments.kwargs) -> Figure:
        matplotlib = require_matplotlib()
        with matplotlib.rc_context(_STYLE):
            return draw(*args, **options)

    return styled_draw


def new_figure(columns: int = 1, height: float = 3.2, width: float = _WIDTH) -> tuple[Figure, Any]:
    """Make a figure of panels side by side, `width` × `height` inches in all; return it and its axes, an array if several.

    Figures of a page have the same width, so that their letters have the same size.
    """
    figure = _picture()(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(1, columns)


@functools.cache
def _picture() -> Any:
    """Return the class of figures that a notebook shows as they are; matplotlib's own need pyplot for that."""
    from matplotlib.figure import Figure

    class Picture(Figure):
        def _repr_png_(self) -> bytes:
            return image(self)

    return Picture


def image(figure: Figure) -> bytes:
    """Render a figure as PNG; the same figure gives the same bytes."""
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context(_STYLE):
        figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    return buffer.getvalue()


def name_text(name: object) -> str:
    """Return a name as matplotlib draws it letter for letter, shortened; it would read two dollar signs as mathematics."""
    text = escaped(str(name))
    if len(text) > _NAME_HEAD + _NAME_TAIL:
        text = f"{text[:_NAME_HEAD]}…{text[-_NAME_TAIL:]}"
    # a legend leaves out what begins with an underscore
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")


def note(axes: Axes, text: str) -> None:
    """Write a note into the middle of an empty panel."""
    axes.grid(visible=False)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, color="#666666", wrap=True)
