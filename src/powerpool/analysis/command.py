"""``powerpool inspect --run RUN``: tables and plots of the features that a trained model pools."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from powerpool.analysis.result import Inspection
from powerpool.analysis.runs import inspect_source, open_source
from powerpool.console import Bars, cell, console, emit, print_line
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


def run(options: InspectOptions) -> None:
    """Print the tables and the advice, and write them with the plots."""
    folder = Path(options.out or Path(options.run, "inspect"))
    require_output(folder / "inspection.json")
    found = inspect_with_progress(options.run, options)
    show(found)
    files = found.write(folder)
    print_line(f"written: {folder}: {', '.join(file.name for file in files)}")
    emit({"folder": folder, "inspection": found.to_dict()})


def inspect_with_progress(folder: str, which: Samples) -> Inspection:
    """Analyse a run, with a progress bar; a run that cannot be loaded is refused before the bar is shown."""
    source = open_source(folder, which)
    with Bars() as bars:
        bar = bars.add("samples", source.count)
        return inspect_source(folder, source, lambda done: bars.update(bar, done))


def show(found: Inspection) -> None:
    """Print an inspection."""
    from rich.table import Table

    for text in (found.headline(), *found.remarks):
        print_line(text)
    tables = (
        ("mean ± standard deviation over samples", ("measure", "before the curve", "after"), found.table()),
        (
            "suggested parameters, and the range to search",
            ("curve", "parameter", "on the spectrum", "entry by entry"),
            found.parameters(),
        ),
    )
    for title, headings, rows in tables:
        table = Table(title=title)
        for heading in headings:
            table.add_column(heading, justify="left" if heading in ("measure", "curve", "parameter") else "right")
        for row in rows:
            table.add_row(*map(cell, row))
        console().print(table)
    print_line(found.advice())
