"""Measuring the default candidates on a GPU, by hand: the share of the time in which the GPU runs a kernel.

600 JPEG files of 400 x 400 pixels, and all default candidates, with random weights that are written to files
before and loaded from these, which changes nothing about the time. Decoding, loading, passes, folds and heads count;
importing libraries does not. The share is the mean of `nvidia-smi`'s utilisation, sampled ten times a second.

    python -m benchmarks.recommend_gpu [--json FILE]
"""

import argparse
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

import task2vec as t2v
from benchmarks.measure import Verdict, describe_machine, make_parser, write_json
from task2vec.select import Candidate
from task2vec.select.candidates import list_candidates
from task2vec.select.measure import measure_models

FILES, CLASSES, SIDE = 600, 20, 400
SAMPLE = ("nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "100")


def write_files(folder: Path) -> None:
    """Blurred noise as JPEG files, in a folder for every class."""
    random = np.random.default_rng(0)
    for number in range(FILES):
        path = folder / f"class {number % CLASSES}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = Image.fromarray(random.integers(0, 256, (40, 40, 3), dtype=np.uint8))
        noise.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(path, quality=90)


def write_weights(name: str, file: Path) -> None:
    """The weights of a network that was not trained."""
    tensors = timm.create_model(name).state_dict()
    save_file({key: tensor.contiguous().clone() for key, tensor in tensors.items()}, file)


def main(arguments: argparse.Namespace) -> None:
    """Measures all candidates once to prepare kernels, and once more while the GPU is watched."""
    candidates = [candidate for candidate in list_candidates() if candidate.timm_name][: arguments.models]
    with tempfile.TemporaryDirectory() as root:
        weights = Path(root, "weights")
        weights.mkdir()
        write_files(Path(root, "images"))

        def write(candidate: Candidate) -> None:
            write_weights(str(candidate.timm_name), weights / f"{candidate.name}.safetensors")

        def load(candidate: Candidate) -> t2v.Probe:
            file = weights / f"{candidate.name}.safetensors"
            return t2v.load_probe(f"timm:{candidate.timm_name}", weights=file, size=candidate.size)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(write, candidates))
        task, shares, seconds = t2v.read_folder(Path(root, "images")), [], []
        for _ in range(arguments.rounds):
            watch = subprocess.Popen(SAMPLE, stdout=subprocess.PIPE, text=True)
            start = time.monotonic()
            measured = measure_models(task, candidates, load=load)
            seconds.append(time.monotonic() - start)
            watch.terminate()
            samples = [int(line) for line in watch.communicate()[0].split()]
            shares.append(float(np.mean(samples)) / 100)
            print(f"{len(measured.models)} models in {seconds[-1]:.1f} s, busy {shares[-1]:.0%}", flush=True)
            for name, spent in zip(measured.models, measured.seconds, strict=True):
                print(f"  {name}: {spent:.2f} s", flush=True)
            for failure in measured.failures:
                print(f"  {failure.model}: {failure.message}", flush=True)
    print(Verdict("share of the time in which the GPU is busy", shares[-1], 0.5, True))
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "processor"
    about = {"device": device, "models": len(candidates), "images": FILES}
    rounds = {"busy": [round(share, 3) for share in shares], "seconds": [round(spent, 2) for spent in seconds]}
    write_json(arguments.json, about | rounds | describe_machine())


if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("--models", type=int, help="only so many of them")
    parser.add_argument("--rounds", type=int, default=2, help="the last one counts; the first one prepares kernels")
    parser.add_argument("--json", type=Path)
    main(parser.parse_args())
