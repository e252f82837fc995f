"""``powerpool figures``: the figures by name, what each shows, and which figure of the paper it is."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from powerpool.console import emit, print_line
from powerpool.errors import ArgumentError, RecordError, UnknownNameError, did_you_mean
from powerpool.figures import computed, measured
from powerpool.figures.data import FigureData, MissingRecordError, Sources
from powerpool.figures.drawing import FORMATS, write_figure


@dataclass(frozen=True)
class Entry:
    """A figure: its data, what it shows, and the labels of the paper's figures in the LaTeX source."""

    make: Callable[[Sources], FigureData]
    shows: str
    paper: str


def _computed(make: Callable[[], FigureData]) -> Callable[[Sources], FigureData]:
    """A figure that reads nothing."""
    return lambda sources: make()


FIGURES: dict[str, Entry] = {
    "curves": Entry(_computed(computed.curves), "Gamma, AsinhE, MaxExp and SigmE", "pow1, pow2"),
    "derivatives": Entry(_computed(computed.derivatives), "the derivatives of these curves", "pow3"),
    "gammas": Entry(_computed(computed.gammas), "Gamma for several exponents, beside MaxExp", "pow4"),
    "hdp": Entry(_computed(computed.hdp), "the profile of HDP at several times", "pow33"),
    "hdp-bounds": Entry(_computed(computed.hdp_bounds), "MaxExp and Gamma as upper bounds of HDP", "pow5"),
    "push-forward": Entry(
        _computed(computed.beta_push_forward), "a Beta spectrum after MaxExp, Gamma and HDP", "dist1 to dist4"
    ),
    "kappa": Entry(_computed(computed.kappa_figure), "kappa against J and N", "poolunc"),
    "y-of-eta": Entry(_computed(computed.y_of_eta_figure), "y(eta)", "y-eta"),
    "bounds": Entry(_computed(computed.bounds_in_y), "HDP, a line and MaxExp in y = t/lambda", "bounds2"),
    "bounds-zoom": Entry(_computed(computed.bounds_in_eigenvalues), "the same in lambda", "bounds-zoom"),
    "fahdp-scaled": Entry(_computed(computed.fahdp_scaled), "the scaled MaxExp, lowered onto the line", "bounds4"),
    "fahdp-line": Entry(_computed(computed.fahdp_tangent), "FAHDP, HDP and a line between them", "bounds5"),
    "fahdp-points": Entry(_computed(computed.fahdp_points), "where that line meets both, against t", "bounds6"),
    "y-of-eta-bar": Entry(_computed(computed.y_of_eta_bar), "y1 against the exponent of the scaled MaxExp", "bounds7"),
    "fahdp": Entry(_computed(computed.fahdp), "FAHDP against HDP for t below and above 1", "bounds8"),
    "timing-eta": Entry(measured.timing_eta, "forward and backward time against eta", "tim1"),
    "timing-channels": Entry(measured.timing_channels, "forward and backward time against C", "tim2, tim3"),
    "variance": Entry(computed.variance, "the variance of 5 to 15 leading eigenvalues against eta", "var1"),
    "sensitivity-beta": Entry(partial(measured.sensitivity, setting="beta"), "accuracy against beta", "eval1"),
    "sensitivity-alpha": Entry(partial(measured.sensitivity, setting="alpha"), "accuracy against alpha", "eval2"),
    "sensitivity-eta-prime": Entry(
        partial(measured.sensitivity, setting="sigme_eta"), "accuracy against eta' of SigmE", "eval3"
    ),
    "sensitivity-eta": Entry(partial(measured.sensitivity, setting="eta"), "accuracy against eta of MaxExp", "eval4"),
    "open-mic-1": Entry(measured.open_mic_pairs, "accuracy against way, protocol I", "openmic1"),
    "open-mic-2": Entry(measured.open_mic_exhibitions, "accuracy against way, protocol II", "openmic2"),
}


def make_figure(name: str, sources: Sources | None = None) -> FigureData:
    """The data of a figure.

    Example:
        >>> [line.name for line in make_figure("hdp").panels[0].lines][:2]
        ['HDP, t = 0.01', 'HDP, t = 0.05']
    """
    require_figure(name)
    return FIGURES[name].make(sources or Sources())


def require_figure(name: str) -> None:
    """Refuse an unknown name, and suggest the nearest."""
    if name not in FIGURES:
        raise UnknownNameError(f"Unknown figure {name!r}.{did_you_mean(name, FIGURES)} Figures: {', '.join(FIGURES)}.")


# ---- command ---------------------------------------------------------------------------------------------------------


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
