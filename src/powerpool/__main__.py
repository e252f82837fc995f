"""``python -m powerpool``, for launchers that start modules, such as ``torchrun -m powerpool``."""

import sys

from powerpool.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
