"""``powerpool inspect --run RUN``: what the pooling of a trained model sees, as a table and as pictures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from powerpool.analysis.runs import Samples, look, open_run
from powerpool.console import Bars, cell, console, emit, say
from powerpool.runs.folder import require_place

if TYPE_CHECKING:
    from powerpool.analysis.result import Inspection

FOLDER = "inspect"


@dataclass(frozen=True)
class InspectOptions(Samples):
    """Spectra, burstiness and correlations of the features that a trained model pools, and a parameter to try.

    Args:
        run: the run folder that 'powerpool train' wrote, of any pipeline
        out: folder for tables and pictures; inspect in the run folder without it
    """

    run: str
    out: str | None = None


def run(options: InspectOptions) -> None:
    """Print the tables and the advice, and write them with the pictures."""
    folder = Path(options.out or Path(options.run, FOLDER))
    source = open_run(options.run, options)  # what is refused is said before there is a bar
    require_place(folder / "inspection.json")
    with Bars() as bars:
        bar = bars.add("samples", source.count)
        found = look(source, lambda done: bars.update(bar, done))
    show(found)
    files = found.write(folder)
    say(f"written: {files[0].parent}: {', '.join(file.name for file in files)}")
    emit({"folder": files[0].parent, "inspection": found.to_dict()})


def show(found: Inspection) -> None:
    """Print an inspection."""
    from rich.table import Table

    for text in (found.headline(), *found.notes):
        say(text)
    if found.after is None:
        say(
            f"{found.normalization.name} pools in first order: it has no matrix and no spectrum to normalize. Shown is "
            "what second-order pooling of the same features would begin with."
        )
    measures = Table("measure", title="mean ± standard deviation over samples")
    for heading in ("before the curve", "after"):
        measures.add_column(heading, justify="right")
    for row in found.table():
        measures.add_row(*map(cell, row))
    console().print(measures)
    parameters = Table("curve", "parameter", title="parameters to start a search from (and its range)")
    for heading in ("on the spectrum", "entry by entry"):
        parameters.add_column(heading, justify="right")
    for line in found.parameters():
        parameters.add_row(*map(cell, line))
    console().print(parameters)
    say(found.advice())
