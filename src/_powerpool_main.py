"""The console command, outside the package: importing the package takes seconds, in which Ctrl-C may come."""

import sys


def main() -> int:
    """Import the command line and run it."""
    try:
        from powerpool.cli.main import main as run
    except KeyboardInterrupt:
        sys.stderr.write("powerpool: interrupted.\n")
        return 130
    return run()
