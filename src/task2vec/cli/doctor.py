"""`task2vec doctor`: what is installed, where things lie, whether they are well, and what mends them."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer

from task2vec.cli import options
from task2vec.cli.checkups import (
    Finding,
    check_bundle,
    check_devices,
    check_extras,
    check_library,
    check_network,
    check_places,
    check_probe,
    check_versions,
)
from task2vec.cli.speech import name_library, print_facts, print_json, say
from task2vec.text import pluralize, printable


def doctor(
    network: Annotated[bool, typer.Option("--network", help="Try to reach the hubs, too; nothing is fetched.")] = False,
    library: options.LibraryFolder = None,
    as_json: options.AsJson = False,
) -> None:
    """Tell versions, devices, places and their health, and what mends it.

    The exit code is 0 if all is well, 4 for a damaged library, and 5 for all else. Nothing is changed, and nobody is
    asked over the network without `--network`.
    """
    parts = {
        "versions": check_versions(),
        "extras": check_extras(),
        "devices": check_devices(),
        "places": check_places(library),
        "library": check_library(library),
        "probe": check_probe(),
        "bundle": check_bundle(),
        **({"network": check_network()} if network else {}),
    }
    found = {part: list(_survive(part, findings)) for part, findings in parts.items()}
    problems = [finding for findings in found.values() for finding in findings if finding.problem]
    if as_json:
        told = {part: [asdict(finding) for finding in findings] for part, findings in found.items()}
        print_json({"is_well": not problems, "problems": len(problems), **told})
    else:
        _print_findings([finding for findings in found.values() for finding in findings], is_asked=network)
    if problems:
        raise typer.Exit(max(finding.exit_code for finding in problems))


def _survive(part: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """The findings of a part; if looking itself fails, that is one, and the rest is looked at all the same."""
    try:
        yield from findings
    except Exception as error:  # whatever is broken here is what a doctor is asked about
        told = f"looking at it failed ({type(error).__name__}: {error})"
        yield Finding(part, "unknown", told, "See where it happened: task2vec --debug doctor, and please report it")


def _print_findings(findings: list[Finding], *, is_asked: bool) -> None:
    """Print every finding as a row, then the problems with what mends them."""
    print_facts([(finding.what, _word(finding)) for finding in findings])
    if not is_asked:
        print("Whether hubs can be reached is tried by: task2vec doctor --network")
    problems = [finding for finding in findings if finding.problem]
    for finding in problems:
        mend = f". Mend it: {printable(finding.mend)}" if finding.mend else ""
        say(f"problem: {printable(finding.problem)}{mend}")
    print("All is well." if not problems else f"{pluralize(len(problems), 'problem')}.")


def _word(finding: Finding) -> str:
    """What was found in one line, and where nothing is wrong what brings more."""
    more = "" if finding.problem or not finding.mend else f": {finding.mend}"
    return f"{'! ' if finding.problem else ''}{printable(finding.found)}{name_library(printable(more))}"
