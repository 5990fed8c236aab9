"""Rows of the taxonomy experiment -> claims, each with what was measured and a verdict that can be against it."""

import math
from collections.abc import Sequence

from experiments.property_claims import FAILS, HOLDS, PARTLY, UNCLEAR, Claim, correlate
from experiments.taxonomy import DOMAIN
from experiments.taxonomy_measures import ALL, WITHIN, Agreement
from experiments.taxonomy_rows import SAME_DATASET, SAME_GROUP, SAME_GROUP_WITHIN, Agreements, Row

# A finding that chance gives more rarely than this counts.
LEVEL = 0.05
TREE = "graph"


def make_claims(agreements: Agreements | None, attributes: Sequence[Row]) -> list[Claim]:
    """All claims, those on the taxonomy first."""
    claims = [] if agreements is None else _claim_taxonomy(agreements)
    for family in dict.fromkeys(row["family"] for row in attributes):
        claims += _claim_questions([row for row in attributes if row["family"] == family])
    return claims


def _claim_taxonomy(agreements: Agreements) -> list[Claim]:
    claims = [_claim_following(agreements)]
    if (TREE, WITHIN) in agreements.found:
        claims.append(_claim_following_within(agreements))
    for scope, words in ((ALL, "agrees better than domains do"), (WITHIN, "... within a dataset")):
        if (TREE, scope) in agreements.found:
            rivals = [name for name in agreements.spaces if name.startswith(DOMAIN)]
            claims.append(_claim_better(agreements, scope, words, rivals))
    cosine = [name for name in agreements.spaces if name == f"{agreements.methods[0]}, cosine"]
    claims.append(_claim_better(agreements, ALL, "... than cosine of the Fishers", cosine))
    claims += _claim_neighbours(agreements)
    norm = correlate([row["norm"] for row in agreements.tasks], [row["error"] for row in agreements.tasks])
    claims.append(Claim("norm_error", "the norm ranks tasks by error", f"rho {norm}", norm.verdict))
    return claims


def _claim_following(agreements: Agreements) -> Claim:
    agreement = agreements.found[TREE, ALL]
    measured = f"{_word(agreement)}, {agreement.pairs} pairs"
    return Claim("taxonomy", "distances follow the taxonomy", measured, _judge(agreement))


def _claim_following_within(agreements: Agreements) -> Claim:
    """It holds if it does in the datasets together and in each by itself; partly, if only together."""
    pooled = agreements.found[TREE, WITHIN]
    parts = {
        scope: found for (kind, scope), found in agreements.found.items() if kind == TREE and scope not in (ALL, WITHIN)
    }
    told = ", ".join(f"{scope} {found.rho[0]:.2f}" for scope, found in parts.items())
    verdict = _judge(pooled)
    if verdict == HOLDS and any(_judge(found) != HOLDS for found in parts.values()):
        verdict = PARTLY
    return Claim("taxonomy", "... within a dataset", f"{_word(pooled)} ({told})", verdict)


def _claim_better(agreements: Agreements, scope: str, words: str, rivals: Sequence[str]) -> Claim:
    """The main space against the best of its rivals."""
    agreement, names = agreements.found[TREE, scope], list(agreements.spaces)
    best = max((names.index(rival) for rival in rivals), key=lambda number: agreement.rho[number])
    difference = float(agreement.rho[0] - agreement.rho[best])
    low, high = agreement.interval(0, minus=best)
    measured = f"rho {difference:+.2f} [{low:+.2f}, {high:+.2f}] over {agreement.rho[best]:.2f}"
    return Claim("taxonomy", words, measured, HOLDS if low > 0 else FAILS if high < 0 else UNCLEAR)


def _claim_neighbours(agreements: Agreements) -> list[Claim]:
    words = {
        SAME_DATASET: "the nearest is of the same dataset",
        SAME_GROUP: "... of the same group",
        SAME_GROUP_WITHIN: "... of the same group, within",
    }
    claims = []
    for kind, sentence in words.items():
        if not any(row["measure"] == kind for row in agreements.measures):
            continue
        row = agreements.look_up(kind, agreements.methods[0])
        measured = f"{100 * row['value']:.0f} %, chance {100 * row['chance']:.0f} %, {row['count']} tasks"
        verdict = HOLDS if row["low"] > row["chance"] else FAILS if row["high"] <= row["chance"] else UNCLEAR
        claims.append(Claim("neighbours", sentence, measured, verdict))
    return claims


def _claim_questions(rows: Sequence[Row]) -> list[Claim]:
    """The rows of one family, the main space first."""
    main, family = rows[0], rows[0]["family"]
    rival = max((row for row in rows if row["space"].startswith(DOMAIN)), key=lambda row: row["rate"])
    verdict = UNCLEAR
    if main["p"] < LEVEL:
        verdict = HOLDS if main["auc_beside"] > 0.5 else PARTLY
    elif main["rate"] <= main["chance"]:
        verdict = FAILS
    told = f"{100 * main['rate']:.0f} %, chance {100 * main['chance']:.0f} %, p {main['p']:.2g}"
    changed = main["domain_features_changed"]
    collapse = f"{changed} features move, found {100 * rival['rate']:.0f} %"
    is_blind = math.isclose(rival["rate"], rival["chance"])
    return [
        Claim("attributes", f"questions are found again: {family}", told, verdict),
        Claim(
            "attributes",
            f"... and not by their domain: {family}",
            collapse,
            HOLDS if is_blind and not changed else PARTLY if is_blind else FAILS,
        ),
    ]


def _judge(agreement: Agreement) -> str:
    """Whether the main space surely agrees, surely does not, or neither."""
    low, high = agreement.interval(0)
    return HOLDS if agreement.p[0] < LEVEL and low > 0 else FAILS if high <= 0 else UNCLEAR


def _word(agreement: Agreement) -> str:
    low, high = agreement.interval(0)
    return f"rho {agreement.rho[0]:.2f} [{low:.2f}, {high:.2f}], p {agreement.p[0]:.1g}"
