"""``powerpool inspect`` and ``powerpool explore``: the features that a trained model pools, as tables and as a page."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from powerpool.analysis.explorer import spectra_of, write_page
from powerpool.analysis.gather import inspect_source, open_source
from powerpool.analysis.result import Inspection
from powerpool.console import Bars, TextTable, emit, print_line, print_table
from powerpool.errors import ArgumentError
from powerpool.runs.folder import require_output
from powerpool.tasks.pooling import Samples


@dataclass(frozen=True)
class InspectOptions(Samples):
    """Analyse the features that a trained model pools: spectra, burstiness, correlations, and parameters to try.

    Args:
        run: run folder of 'powerpool train', of any task
        out: folder for tables and plots; default: inspect in the run folder
    """

    run: str
    out: str | None = None


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


def inspect(options: InspectOptions) -> None:
    """Print the tables and the advice, and write them with the plots."""
    folder = Path(options.out or Path(options.run, "inspect"))
    require_output(folder / "inspection.json")
    found = inspect_with_progress(options.run, options)
    _show(found)
    files = found.write(folder)
    print_line(f"written: {folder}: {', '.join(file.name for file in files)}")
    emit({"folder": folder, "inspection": found.to_dict()})


def explore(options: ExploreOptions) -> None:
    """Write the page."""
    import plotly.offline  # noqa: F401  # fails before the work if it is missing

    require_output(options.out)
    spectra = None if options.run is None else spectra_of(inspect_with_progress(options.run, options))
    write_page(options.out, spectra)
    print_line(f"written: {options.out}. Open it in a browser: {options.out.resolve().as_uri()}")
    emit({"page": options.out, "run": options.run, "samples": 0 if spectra is None else len(spectra.spectra)})


def inspect_with_progress(folder: str, which: Samples) -> Inspection:
    """Analyse a run, with a progress bar; a run that cannot be loaded is refused before the bar is shown."""
    source = open_source(folder, which)
    with Bars() as bars:
        bar = bars.add("samples", source.count)
        return inspect_source(folder, source, lambda done: bars.update(bar, done))


def _show(found: Inspection) -> None:
    for text in (found.headline(), *found.remarks):
        print_line(text)
    measures = ("measure", "before the curve", "after")
    print_table(TextTable("mean ± standard deviation over samples", measures, found.table(), measures[:1]))
    parameters = ("curve", "parameter", "on the spectrum", "entry by entry")
    title = "suggested parameters, and the range to search"
    print_table(TextTable(title, parameters, found.parameters(), parameters[:2]))
    print_line(found.advice())
