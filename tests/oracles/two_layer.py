"""The Fisher of the two-layer sigmoid network of Achille 2019, in closed form.

z = sigmoid(U x), p = sigmoid(w^T z):  F = E[p (1 - p) S kron x x^T]  with  S = w w^T o z z^T o (1 - z)(1 - z)^T.
"""

import numpy as np


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def full_fisher(u: np.ndarray, w: np.ndarray, images: np.ndarray) -> np.ndarray:
    """(h d, h d): the whole matrix for the weights U (h, d), row by row, averaged over the rows of `images` (n, d)."""
    total = np.zeros((u.size, u.size))
    for x in images:
        z = sigmoid(u @ x)
        p = sigmoid(w @ z)
        s = np.outer(w, w) * np.outer(z, z) * np.outer(1 - z, 1 - z)
        total += p * (1 - p) * np.kron(s, np.outer(x, x))
    return total / len(images)


def diagonal_fisher(u: np.ndarray, w: np.ndarray, images: np.ndarray) -> np.ndarray:
    """(h, d): the diagonal of the matrix, without forming it."""
    z = sigmoid(images @ u.T)
    p = sigmoid(z @ w)
    return np.einsum("n,nh,nd->hd", p * (1 - p), np.square(w * z * (1 - z)), np.square(images)) / len(images)


def filter_fisher(u: np.ndarray, w: np.ndarray, images: np.ndarray) -> np.ndarray:
    """(h,): the diagonal averaged over the weights of each hidden unit."""
    return full_fisher(u, w, images).diagonal().reshape(u.shape).mean(1)
