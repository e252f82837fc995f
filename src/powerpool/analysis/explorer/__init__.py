"""The curve explorer: one HTML file with sliders for the parameters of curves, and plots that follow them.

Example:
    >>> from powerpool.analysis.explorer import make_page
    >>> make_page()[:15]
    '<!doctype html>'
"""

from powerpool.analysis.explorer.page import RunSpectra, make_page, spectra_of, write_page

__all__ = ["RunSpectra", "make_page", "spectra_of", "write_page"]
