"""``powerpool explore``: a page to move the parameters of curves and see what they do."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from powerpool.analysis.explorer.page import write_page
from powerpool.analysis.explorer.spectra import RunSpectra, spectra_of
from powerpool.analysis.runs import Samples, look, open_run
from powerpool.console import Bars, emit, say
from powerpool.errors import ArgumentError
from powerpool.runs.folder import require_place

SAMPLES = 100


@dataclass(frozen=True)
class ExploreOptions(Samples):
    """A page for the browser: pick a curve, move its parameter, see what it does to a spectrum. It needs no network.

    Args:
        out: the file to write; its name ends in .html
        run: a run folder that 'powerpool train' wrote, whose spectra the page shows beside Beta distributions
    """

    out: Path = Path("explore.html")
    run: str | None = None
    samples: int = field(default=SAMPLES, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.out.suffix.lower() not in (".html", ".htm"):
            raise ArgumentError(f"out must be a file whose name ends in .html (got {str(self.out)!r}).")
        if self.out.is_dir():
            raise ArgumentError(f"out must be a file, and {str(self.out)!r} is a folder.")
        if self.run is None and (self.data is not None or self.data_root is not None or self.split != "train"):
            raise ArgumentError("data, data_root and split belong to a run: name it with --run.")


def run(options: ExploreOptions) -> None:
    """Write the page, and say where it is."""
    import plotly.offline  # noqa: F401  # what the page cannot be written without is missed before the work

    require_place(options.out)
    spectra = None if options.run is None else _spectra(options.run, options)
    write_page(options.out, spectra)
    say(f"written: {options.out}. Open it in a browser: {options.out.resolve().as_uri()}")
    emit({"page": options.out, "run": options.run, "samples": 0 if spectra is None else len(spectra.spectra)})


def _spectra(folder: str, which: Samples) -> RunSpectra:
    source = open_run(folder, which)  # what is refused is said before there is a bar
    with Bars() as bars:
        bar = bars.add("samples", source.count)
        return spectra_of(look(source, lambda done: bars.update(bar, done)))
