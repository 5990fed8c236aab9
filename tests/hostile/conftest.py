"""A forge of processes for the attacks on the library."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.library.making import ENVIRONMENT, ROOT


class Forge:
    """Makes workers, and reads what they say."""

    def __init__(self, errors):
        env = {**os.environ, **ENVIRONMENT}
        command = [sys.executable, "-m", "tests.hostile.library_forge"]
        self.errors, pipe = errors, subprocess.PIPE
        self.process = subprocess.Popen(command, env=env, cwd=ROOT, text=True, stdin=pipe, stdout=pipe, stderr=errors)
        self.said = []

    def make(self, job, **told):
        """Starts a worker and returns its number."""
        return int(self._ask({"job": job} | told, "made"))

    def kill(self, worker):
        """Kills a worker without a warning."""
        os.kill(worker, 9)
        return self.wait(worker)

    def wait(self, worker):
        """What a worker ended with."""
        return int(self._ask({"wait": worker}, "gone"))

    def hear(self, lines):
        """Reads that many lines of workers."""
        self.said += [self.process.stdout.readline().split() for _ in range(lines)]

    def _ask(self, told, answer):
        print(json.dumps(told), file=self.process.stdin, flush=True)
        while (line := self.process.stdout.readline().split())[0] != answer:
            self.said.append(line)
        return line[1]

    def tell_errors(self):
        """What workers complained of."""
        self.errors.flush()
        return Path(self.errors.name).read_text()


@pytest.fixture(scope="session")
def forge(tmp_path_factory):
    with open(tmp_path_factory.mktemp("forge") / "errors", "w") as errors:
        forge = Forge(errors)
        with forge.process:
            yield forge
