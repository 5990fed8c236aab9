"""R10: a process that embeds a thousand tasks does not grow; S10: tests reach no network."""

import socket
import sys

import pytest
from pytest_socket import SocketBlockedError

from tests.library.making import run_python

# Tells the memory in use (not its peak) again and again: what is kept of a task shows as a slope.
THOUSAND = """
import gc, sys
from pathlib import Path
from task2vec.embedding import EmbedSettings, embed
from tests.embedding.conftest import make_task
from tests.embedding.test_methods import make_tiny

def memory():
    gc.collect()
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024

runs, warm = int(sys.argv[1]), int(sys.argv[2])
probe, settings = make_tiny(), EmbedSettings(max_samples=12, l2=0.1)
for number in range(runs):
    embedding = embed(make_task(counts=(6, 6), seed=number), probe, settings=settings)
    if number + 1 in (warm, runs):
        print(memory(), flush=True)
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_r10_a_thousand_embeddings_in_one_process():
    warm, end = map(float, run_python(THOUSAND, 1000, 50, timeout=3000).split())
    print(f"{warm:.0f} MB after 50 embeddings, {end:.0f} MB after 1000")
    assert end < 1.05 * warm


@pytest.mark.filterwarnings("ignore:A test tried to use")
def test_s10_a_test_that_reaches_out_fails():
    with pytest.raises(SocketBlockedError):
        socket.socket(socket.AF_INET, socket.SOCK_STREAM)


def test_s10_all_tests_run_with_sockets_blocked(pytestconfig):
    assert pytestconfig.getoption("--disable-socket") and not pytestconfig.getoption("--force-enable-socket")
