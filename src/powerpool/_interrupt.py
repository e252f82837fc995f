"""``python -m powerpool`` imports the package before ``__main__`` can catch anything; Ctrl-C then prints one line."""

import sys
from types import TracebackType


def _show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.stderr.write("powerpool: interrupted.\n")
    else:
        sys.__excepthook__(kind, error, traceback)


# While the packages of a module are imported, its place in sys.argv is "-m"; other modules may import powerpool, too.
if sys.argv[:1] == ["-m"] and sys.orig_argv[sys.orig_argv.index("-m") + 1 :][:1] == ["powerpool"]:
    sys.excepthook = _show
