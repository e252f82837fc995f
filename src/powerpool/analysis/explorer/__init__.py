"""The curve explorer: one HTML file with sliders for the parameters of curves, and plots that follow them.

Example:
    >>> from powerpool.analysis.explorer import make_page
    >>> make_page()[:15]
    '<!doctype html>'
"""

from powerpool.analysis.explorer.page import make_page, write_page
from powerpool.analysis.explorer.spectra import RunSpectra, spectra_of

__all__ = ["RunSpectra", "make_page", "spectra_of", "write_page"]
