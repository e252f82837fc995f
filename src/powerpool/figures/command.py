"""``powerpool figures``: the figures of the paper that are computed, as PNG and SVG, and their data as CSV."""

from __future__ import annotations

import builtins
from dataclasses import dataclass, field
from pathlib import Path

from powerpool.console import emit, print_line
from powerpool.errors import ArgumentError, RecordError
from powerpool.figures.drawing import FORMATS, write_figure
from powerpool.figures.registry import FIGURES, make_figure, require_figure
from powerpool.figures.sources import MissingRecordError, Sources

DPI = (30, 1200)


@dataclass(frozen=True)
class FiguresOptions:
    """Draw figures of the paper: curves and bounds from their formulas, measurements from records of runs.

    Args:
        names: figures to draw; default: all. --list lists them
        out: folder that gets NAME.png, NAME.svg and NAME.csv
        records: files and folders with records of bench, sweep and reproduce; default: results and runs, without
            quick records
        features: features for the variance of eigenvalues: a folder of stored features, or the name of a data set with
            stored features in the cache; default: a synthetic spectrum
        dpi: dots per inch of a PNG
        list: print the names of the figures and what they show, and do nothing else
    """

    # Not list[str]: in this class `list` is an option.
    names: builtins.list[str] = field(default_factory=builtins.list)
    out: Path = Path("runs/figures")
    records: builtins.list[Path] = field(default_factory=builtins.list)
    features: str | None = None
    dpi: int = 200
    list: bool = False

    def __post_init__(self) -> None:
        for name in self.names:
            require_figure(name)
        if not DPI[0] <= self.dpi <= DPI[1]:
            raise ArgumentError(f"dpi must be between {DPI[0]} and {DPI[1]} (got {self.dpi}).")


def run(options: FiguresOptions) -> None:
    """Draw the figures. Without names a figure whose record is missing is skipped; by name it is an error.

    A damaged record is an error in any case. Everything else is drawn before an error is raised.
    """
    if options.list:
        _list_figures()
        return
    sources = Sources(tuple(options.records), options.features)
    written: dict[str, list[Path]] = {}
    missing: dict[str, MissingRecordError] = {}
    damaged: dict[str, RecordError] = {}
    for name in dict.fromkeys(options.names or FIGURES):
        try:
            data = make_figure(name, sources)
        except MissingRecordError as error:
            missing[name] = error
            if not options.names:
                print_line(f"{name}: skipped, {error}")
            continue
        except RecordError as error:
            damaged[name] = error
            continue
        written[name] = write_figure(data, options.out / name, options.dpi)
        print_line(f"{name}: {options.out / name}.{{{','.join(FORMATS)}}}")
    errors = {**damaged, **(missing if options.names else {})}
    if errors:
        kind = RecordError if damaged else MissingRecordError
        raise kind(" ".join(f"{name}: {error}" for name, error in errors.items()))
    emit({"folder": options.out, "written": written, "skipped": {name: str(error) for name, error in missing.items()}})


def _list_figures() -> None:
    emit({name: {"shows": entry.shows, "paper": entry.paper} for name, entry in FIGURES.items()})
    width = max(map(len, FIGURES))
    for name, entry in FIGURES.items():
        print_line(f"{name:<{width}}  {entry.shows} (paper: {entry.paper})")
