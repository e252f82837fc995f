"""Builds the page: one HTML file that loads nothing and runs only its own scripts."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from importlib import resources
from pathlib import Path

from powerpool import __version__
from powerpool.analysis.explorer.spectra import RunSpectra
from powerpool.files import write_text

TITLE = "Curve explorer"
PLACEHOLDER = re.compile("<!--([a-z]+)-->")


def write_page(path: str | Path, run: RunSpectra | None = None) -> None:
    """Write the explorer atomically.

    Args:
        path: of the HTML file.
        run: spectra of a trained model, shown beside those of Beta distributions.
    """
    write_text(path, make_page(run))


def make_page(run: RunSpectra | None = None) -> str:
    """Return the explorer as HTML. Needs the package ``plotly``, which contains the plotting script."""
    from plotly.offline import get_plotlyjs

    scripts = {"plotly": _escape_script(get_plotlyjs())}
    scripts |= {name: _escape_script(_read_asset(f"{name}.js")) for name in ("formulas", "app")}
    parts = {
        **scripts,
        "policy": html.escape(make_policy(list(scripts.values()))),
        "title": html.escape(TITLE if run is None else f"{TITLE}: {run.title}"),
        "style": _read_asset("page.css"),
        "run": "" if run is None else _run_box(run),
        "version": html.escape(__version__),
        "data": json_in_html(None if run is None else run.to_dict()),
    }
    # A single pass: text inside a part that looks like a placeholder is left alone.
    return PLACEHOLDER.sub(lambda found: parts[found[1]], _read_asset("page.html"))


def make_policy(scripts: list[str]) -> str:
    """Return a Content-Security-Policy that allows these scripts and inline styles, and no requests.

    Example:
        >>> make_policy(["1"]).split(";")[1]
        " script-src 'sha256-a4ayc/80/OGda4BO/1o/V0etpOqiLx1JwB5S3beHW0s='"
    """
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{one}'" for one in hashes)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def json_in_html(data: object) -> str:
    r"""Return JSON in which ``<``, ``>`` and ``&`` are escaped, so that no text in it can end the element.

    Example:
        >>> print(json_in_html("</script>"))
        "\u003c/script\u003e"
    """
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def _read_asset(name: str) -> str:
    return resources.files("powerpool.analysis.explorer").joinpath("assets", name).read_text(encoding="utf-8")


def _escape_script(text: str) -> str:
    """Escape what would end a script element; in JavaScript it can only occur in strings and regular expressions."""
    return re.sub(r"</(?=script)", r"<\\/", text, flags=re.IGNORECASE).replace("<!--", r"<\!--")


def _run_box(run: RunSpectra) -> str:
    notes = "".join(f'<p class="hint">{html.escape(note)}</p>' for note in run.notes)
    return (
        f'<div class="run" id="run-box"><p>{html.escape(run.title)}</p>{notes}'
        '<p><button type="button" id="use-own">parameter of the run</button> '
        '<button type="button" id="use-suggestion">suggested parameter</button></p></div>'
    )
