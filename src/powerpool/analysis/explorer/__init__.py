"""The explorer: one HTML file in which a person moves the parameter of a curve and sees what follows.

Example:
    >>> from powerpool.analysis.explorer import make_page
    >>> make_page()[:15]
    '<!doctype html>'
"""

from powerpool.analysis.explorer.page import make_page, write_page
from powerpool.analysis.explorer.spectra import RunSpectra, spectra_of

__all__ = ["RunSpectra", "make_page", "spectra_of", "write_page"]
