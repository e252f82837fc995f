"""``powerpool explore``: write the curve explorer, on request with the spectra of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from powerpool.analysis.command import inspect_with_progress
from powerpool.analysis.explorer.page import write_page
from powerpool.analysis.explorer.spectra import spectra_of
from powerpool.console import emit, print_line
from powerpool.errors import ArgumentError
from powerpool.runs.folder import require_output
from powerpool.tasks.pooling import Samples


@dataclass(frozen=True)
class ExploreOptions(Samples):
    """Write a page for the browser that shows what the parameters of curves do to a spectrum. It works offline.

    Args:
        out: the file to write; its name ends in .html
        run: run folder of 'powerpool train'; the page shows its spectra beside Beta distributions
    """

    out: Path = Path("explore.html")
    run: str | None = None
    samples: int = field(default=100, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.out.suffix.lower() not in (".html", ".htm"):
            raise ArgumentError(f"out must be a file name that ends in .html (got {str(self.out)!r}).")
        if self.run is None and (self.data is not None or self.data_root is not None or self.split != "train"):
            raise ArgumentError("data, data_root and split need a run: name it with --run.")


def run(options: ExploreOptions) -> None:
    """Write the page."""
    import plotly.offline  # noqa: F401  # fails before the work if it is missing

    require_output(options.out)
    spectra = None if options.run is None else spectra_of(inspect_with_progress(options.run, options))
    write_page(options.out, spectra)
    print_line(f"written: {options.out}. Open it in a browser: {options.out.resolve().as_uri()}")
    emit({"page": options.out, "run": options.run, "samples": 0 if spectra is None else len(spectra.spectra)})
