"""Runs share a folder: every unit is made by one of them, once, and what a dead one began is begun again."""

import multiprocessing
import time
from types import SimpleNamespace

import numpy as np
import pytest

from experiments import metatask_run
from experiments.metatask_run import Run, Unit
from experiments.metatask_studio import fingerprint_code, halve


def make_run(folder, monkeypatch, work):
    """A run of six units that note who was at work."""
    plan = SimpleNamespace(tasks=(), experts=(), lessons=())
    monkeypatch.setattr(metatask_run, "plan_metatask", lambda *_, **__: plan)
    run = Run(folder, folder, folder, device="cpu", workers=1, say=lambda _: None)
    files = [folder / "experts" / f"{number}.json" for number in range(6)]
    monkeypatch.setattr(run, "units", lambda parts: [Unit("experts", f.stem, f, lambda f=f: work(f)) for f in files])
    return run


def write(file):
    file.write_text("{}")


def test_a_second_run_makes_what_is_left(tmp_path, monkeypatch):
    calls = []

    def work(file):
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append(file.stem)
        write(file)

    with pytest.raises(KeyboardInterrupt):
        make_run(tmp_path, monkeypatch, work).make(seconds=1e9)
    piece = make_run(tmp_path, monkeypatch, lambda file: (calls.append(file.stem), write(file))).make(seconds=1e9)
    assert calls == list("012345") and piece.made == tuple("345") and piece.left == ()


def test_what_another_run_is_making_is_left_to_it(tmp_path, monkeypatch):
    run = make_run(tmp_path, monkeypatch, write)
    with metatask_run._claim(tmp_path / "experts" / "2.json") as is_ours:
        assert is_ours
        piece = run.make(seconds=1e9)
    assert piece.made == tuple("01345") and piece.left == ("2",)
    assert run.make(seconds=1e9).made == ("2",)


def _hold(file, is_held):
    with metatask_run._claim(file):
        is_held.set()
        time.sleep(60)


def test_the_claim_of_a_killed_run_is_free(tmp_path):
    file, context = tmp_path / "experts" / "0.json", multiprocessing.get_context("fork")
    is_held = context.Event()
    process = context.Process(target=_hold, args=(file, is_held))
    process.start()
    assert is_held.wait(30)
    with metatask_run._claim(file) as is_ours:
        assert not is_ours
    process.kill()
    process.join()
    with metatask_run._claim(file) as is_ours:
        assert is_ours


def test_nothing_is_begun_that_would_not_end_in_time(tmp_path, monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(metatask_run, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def work(file):
        clock.now += 10
        write(file)

    piece = make_run(tmp_path, monkeypatch, work).make(seconds=35)
    assert piece.made == tuple("012") and piece.left == tuple("345")  # a fourth might take until 42


def test_halves_of_the_images_are_disjoint_and_even_in_every_class():
    targets = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [5, 8, 3]))
    half = halve(targets)
    assert np.bincount(targets[half]).tolist() == [3, 4, 2] and np.bincount(targets[~half]).tolist() == [2, 4, 1]


def test_code_has_one_fingerprint():
    assert fingerprint_code() == fingerprint_code() and len(fingerprint_code()) == 16
