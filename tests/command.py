"""The `task2vec` command, or a script, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

# Output is returned as text.
TEXT: dict[str, Any] = {"capture_output": True, "text": True, "encoding": "utf-8"}
START = "from task2vec.cli import main; main()"
ROOT = Path(__file__).parents[1]
ENVIRONMENT = {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}


def run_command(
    *args: object, cwd: Path | None = None, python: str = START, timeout: float = 300, **env: str
) -> subprocess.CompletedProcess:
    """The result of the command; `env` is added to the environment, and `python` replaces the code that starts it."""
    kept = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}
    command, own = [sys.executable, "-c", python, *map(str, args)], {**kept, **env}
    return subprocess.run(command, cwd=cwd, env=own, stdin=subprocess.DEVNULL, timeout=timeout, **TEXT)


def run_python(script, *words, timeout=100):
    """What a script prints, in a process of its own."""
    done = run_command(*words, python=script, timeout=timeout, **ENVIRONMENT)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
