"""The command line: parse, call, print; no mathematics.

Nothing here imports torch, numpy, Pillow or rich before a command needs it, so that `task2vec --help` answers at once.
"""

import os
import sys

__all__ = ["main"]


def main() -> None:
    """Run the `task2vec` command and exit with its code."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character gets its code instead of an error.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    # Torch's threads that wait for each other leave the processor to others: on a busy machine, an embedding takes less
    # than half as long. OpenMP reads this when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        from task2vec.cli.app import app

        app()
    except KeyboardInterrupt:  # before any command has started
        sys.exit(130)
