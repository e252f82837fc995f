"""Puts the page together from its parts: one file, which asks nothing of a network and runs no script but its own."""

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
PLACE = re.compile("<!--([a-z]+)-->")


def write_page(path: str | Path, run: RunSpectra | None = None) -> None:
    """Write the explorer, atomically.

    Args:
        path: of the HTML file.
        run: spectra of a trained model, beside those of Beta distributions.
    """
    write_text(path, make_page(run))


def make_page(run: RunSpectra | None = None) -> str:
    """The explorer as HTML. Needs the package ``plotly``, which carries the script that draws."""
    from plotly.offline import get_plotlyjs

    scripts = {"plotly": _script(get_plotlyjs()), "formulas": _script(_asset("formulas.js"))}
    scripts["app"] = _script(_asset("app.js"))
    parts = {
        **scripts,
        "policy": html.escape(policy(list(scripts.values()))),
        "title": html.escape(TITLE if run is None else f"{TITLE}: {run.title}"),
        "style": _asset("page.css"),
        "run": "" if run is None else _run_box(run),
        "version": html.escape(__version__),
        "data": json_in_html(None if run is None else run.to_dict()),
    }
    # In one pass: what looks like a place inside a part stays as it is.
    return PLACE.sub(lambda place: parts[place[1]], _asset("page.html"))


def policy(scripts: list[str]) -> str:
    """What a browser lets the page do: run these very scripts, style itself, draw, and fetch nothing.

    Example:
        >>> policy(["1"]).split(";")[1]
        " script-src 'sha256-a4ayc/80/OGda4BO/1o/V0etpOqiLx1JwB5S3beHW0s='"
    """
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{one}'" for one in hashes)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def json_in_html(data: object) -> str:
    r"""JSON that no text in it can end: ``<``, ``>`` and ``&`` are written as numbers.

    Example:
        >>> print(json_in_html("</script>"))
        "\u003c/script\u003e"
    """
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def _asset(name: str) -> str:
    return resources.files("powerpool.analysis.explorer").joinpath("assets", name).read_text(encoding="utf-8")


def _script(text: str) -> str:
    """A script as it can stand between its tags; a browser ends it at the first closing tag, also inside a text."""
    # In texts and patterns of JavaScript, the only places where it can be, a backslash before the slash means nothing.
    return re.sub(r"</(?=script)", r"<\\/", text, flags=re.IGNORECASE).replace("<!--", r"<\!--")


def _run_box(run: RunSpectra) -> str:
    notes = "".join(f'<p class="hint">{html.escape(note)}</p>' for note in run.notes)
    return (
        f'<div class="run" id="run-box"><p>{html.escape(run.title)}</p>{notes}'
        '<p><button type="button" id="use-own">as at the start</button> '
        '<button type="button" id="use-suggestion">suggested parameter</button></p></div>'
    )
