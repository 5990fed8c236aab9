"""What goes into the wheel and the sdist: all that is needed at run time and by the tests, and nothing else."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LARGEST_WHEEL = 15_000_000

# By hatch's own choice of files, which takes a second where building takes a minute.
wheels = pytest.importorskip("hatchling.builders.wheel", reason="hatchling is not installed: task2vec[dev]")
sdists = pytest.importorskip("hatchling.builders.sdist", reason="hatchling is not installed: task2vec[dev]")


@pytest.fixture(scope="module")
def wheel():
    return {file.distribution_path for file in wheels.WheelBuilder(str(ROOT)).recurse_included_files()}


@pytest.fixture(scope="module")
def sdist():
    return {file.distribution_path for file in sdists.SdistBuilder(str(ROOT)).recurse_included_files()}


def list_source():
    """What lies in the package, but for what Python leaves there."""
    files = (file for file in (ROOT / "src").rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    return {file.relative_to(ROOT / "src").as_posix() for file in files}


def test_the_wheel_has_all_of_the_package_and_nothing_else_and_stays_small(wheel):
    assert wheel == list_source() and {"task2vec/py.typed", "task2vec/web/static/index.html"} <= wheel
    assert sum((ROOT / "src" / name).stat().st_size for name in wheel) < LARGEST_WHEEL  # before it is compressed


def test_all_that_the_page_asks_for_is_in_the_wheel(wheel):
    static = ROOT / "src" / "task2vec" / "web" / "static"
    asked = set()
    for file in static.rglob("*"):
        if file.suffix in (".html", ".js", ".css"):
            text = file.read_text(encoding="utf-8")
            told = re.findall(r"""(?:from|import|src=|href=|url\()\s*["'(]?\.?/?([\w./-]+\.(?:js|css|svg|png))""", text)
            asked |= {(file.parent / name.removeprefix("static/")).resolve() for name in told}
    assert len(asked) > 5
    # The server also serves what the map shares with the page that is written to a file.
    served = [f"task2vec/web/static/{one.relative_to(static).as_posix()}" for one in asked]
    missing = [name for name in served if name not in wheel and name.replace("/web/", "/plots/") not in wheel]
    assert not missing


def test_the_sdist_has_what_tests_and_make_need_and_nothing_that_is_made_anew(sdist):
    named = {"Makefile", "README.md", "SECURITY.md", "CITATION.cff", "constraints.txt", ".ci/install"}
    named |= {"mkdocs.yml", ".pre-commit-config.yaml", ".github/workflows/ci.yml"}
    # Tests of the experiments read the embeddings.
    assert named | {"docs/results/taxonomy/resnet34/embeddings.safetensors", "benchmarks/measure.py"} <= sdist
    assert not [name for name in sdist if re.search(r"__pycache__|\.pyc$|\.pdf$|^(dist|build|site|\.venv)", name)]
    listed = subprocess.run(["git", "ls-files", "src", "tests"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this is no repository, so there is no list to compare with")
    tracked = {name for name in listed.stdout.splitlines() if (ROOT / name).exists()}
    assert tracked <= sdist


def test_ranges_have_a_lower_end_and_contain_the_tested_versions():
    extras = PROJECT["project"]["optional-dependencies"].values()
    lines = [*PROJECT["project"]["dependencies"], *(line for extra in extras for line in extra)]
    assert not [line for line in lines if ">=" not in line and "==" not in line and not line.startswith("task2vec[")]
    requirements = pytest.importorskip("packaging.requirements")
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert "://" not in text and "@" not in text  # where packages come from is up to pip's settings
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE))
    for line in PROJECT["project"]["dependencies"]:
        wanted = requirements.Requirement(line)
        assert pinned[wanted.name.lower().replace("_", "-")] in wanted.specifier, line


def test_workflows_run_targets_of_make_on_the_lowest_and_the_newest_python():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {*re.findall(r"^([a-z-]+):", makefile, re.MULTILINE)}
    workflows = "".join(file.read_text(encoding="utf-8") for file in (ROOT / ".github" / "workflows").glob("*.yml"))
    asked = re.findall(r"\brun: make ([a-z-]+)$|\btargets?: \[?([a-z -]+)", workflows, re.MULTILINE)
    assert asked and {word for pair in asked for word in " ".join(pair).split()} <= targets
    versions = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["project"]["classifiers"]))
    assert {*re.findall(r'"(3\.\d+)"', workflows)} == {versions[0], versions[-1]}
    assert PROJECT["project"]["requires-python"] == f">={versions[0]}"
