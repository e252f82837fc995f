"""``powerpool explore``: a page to move the parameters of curves and see what they do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from powerpool.checks import ArgumentError, require_at_least
from powerpool.console import Bars, emit, say
from powerpool.explore.page import write_page
from powerpool.explore.spectra import RunSpectra, spectra_of
from powerpool.inspect.runs import Split, Wanted, inspect_run

SAMPLES = 100


@dataclass(frozen=True)
class ExploreOptions:
    """A page for the browser: pick a curve, move its parameter, see what it does to a spectrum. It needs no network.

    Args:
        out: the file to write; its name ends in .html
        run: a run folder that 'powerpool train' wrote, whose spectra the page shows beside Beta distributions
        data: other data than that of the run, all of which is drawn from: a data set, or a folder or zip
        data_root: folder with data sets; that of the run without it
        split: which part of the run's own data to look at
        samples: how many pictures or graphs, drawn at random
        seed: of the draw
        download: whether data and weights that are not on this machine may be fetched from the network
    """

    out: Path = Path("explore.html")
    run: str | None = None
    data: str | None = None
    data_root: str | None = None
    split: Split = "train"
    samples: int = SAMPLES
    seed: int = 0
    download: bool = False

    def __post_init__(self) -> None:
        if self.out.suffix.lower() not in (".html", ".htm"):
            raise ArgumentError(f"out must be a file whose name ends in .html (got {str(self.out)!r}).")
        if self.out.is_dir():
            raise ArgumentError(f"out must be a file, and {str(self.out)!r} is a folder.")
        require_at_least(1, "", samples=self.samples)
        if not 0 <= self.seed < 2**31:
            raise ArgumentError(f"seed must be at least 0 and below 2**31 (got {self.seed}).")
        if self.run is None and (self.data is not None or self.data_root is not None):
            raise ArgumentError("data and data_root belong to a run: name it with --run.")


def run(options: ExploreOptions) -> None:
    """Write the page, and say where it is."""
    spectra = None if options.run is None else _spectra(options, options.run)
    write_page(options.out, spectra)
    say(f"written: {options.out}. Open it in a browser: {options.out.resolve().as_uri()}")
    emit({"page": options.out, "run": options.run, "samples": 0 if spectra is None else len(spectra.spectra)})


def _spectra(options: ExploreOptions, folder: str) -> RunSpectra:
    wanted = Wanted(
        run=folder,
        data=options.data,
        data_root=options.data_root,
        split=options.split,
        samples=options.samples,
        seed=options.seed,
        download=options.download,
    )
    with Bars() as bars:
        bar = bars.add("samples", options.samples)
        return spectra_of(inspect_run(wanted, lambda done: bars.update(bar, done)))
