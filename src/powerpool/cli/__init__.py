"""The command line."""

from powerpool.cli.main import main

__all__ = ["main"]
