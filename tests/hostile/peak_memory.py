"""How much memory a process has had at most."""

import resource
import sys
from pathlib import Path


def peak_memory():
    """Megabytes. What `getrusage` says begins with the peak of the parent that made the process, so Linux is asked."""
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024**2 if sys.platform == "darwin" else 1024)
