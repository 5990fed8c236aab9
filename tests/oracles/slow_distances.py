"""Every distance by its definition, from the values themselves, one pair and one filter at a time."""

import math
from fractions import Fraction


def cosine(a, b):
    dot, aa, bb = (math.fsum(x * y for x, y in zip(*pair, strict=True)) for pair in ((a, b), (a, a), (b, b)))
    return 1 - dot / math.sqrt(aa * bb)


def symmetric(a, b):
    return cosine([x / (x + y) for x, y in zip(a, b, strict=True)], [y / (x + y) for x, y in zip(a, b, strict=True)])


def euclidean(a, b):
    return math.dist(a, b)


def kl(a, b):
    """KL(N(0, 1/a) || N(0, 1/b)) from the textbook's formula for variances: (r - 1 - log r) / 2, r = var_a / var_b."""
    terms = []
    for x, y in zip(a, b, strict=True):
        r = (1 / x) / (1 / y)
        terms.append((r - 1 - math.log(r)) / 2)
    return math.fsum(terms) / len(terms)


def jeffreys(a, b):
    return kl(a, b) + kl(b, a)


def jensen_shannon(a, b):
    """Root of the divergence in bits, of the two scaled to sum one."""
    p, q = ([x / math.fsum(side) for x in side] for side in (a, b))
    halves = [
        x * math.log2(2 * x / (x + y)) + y * math.log2(2 * y / (x + y)) if x + y > 0 else 0.0
        for x, y in zip(p, q, strict=True)
    ]
    return math.sqrt(max(math.fsum(halves) / 2, 0))


def correlation(a, b):
    a, b = [math.log(x) for x in a], [math.log(x) for x in b]
    means = math.fsum(a) / len(a), math.fsum(b) / len(b)
    return cosine([x - means[0] for x in a], [y - means[1] for y in b])


def log_euclidean(a, b):
    return math.sqrt(math.fsum((math.log(x) - math.log(y)) ** 2 for x, y in zip(a, b, strict=True)) / len(a))


def centred_log_euclidean(a, b):
    u = [math.log(x) - math.log(y) for x, y in zip(a, b, strict=True)]
    mean = math.fsum(u) / len(u)
    return math.sqrt(math.fsum((x - mean) ** 2 for x in u) / len(u))


def exact_symmetric_cosine(a, b):
    """The squared cosine of the symmetric distance of whole numbers, as a fraction without any rounding."""
    p = [Fraction(x, x + y) for x, y in zip(a, b, strict=True)]
    dot = sum(x * (1 - x) for x in p)
    return dot * dot / (sum(x * x for x in p) * sum((1 - x) * (1 - x) for x in p))
