"""`problem.dataset`: small problems with a known minimiser, given inline or drawn."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedcore.block import Block, ClientCount, Finite, NonNegative, Seed

Vector = Annotated[tuple[Finite, ...], Field(fail_fast=True, min_length=1, max_length=10_000)]
Matrix = Annotated[tuple[Vector, ...], Field(fail_fast=True, min_length=1, max_length=100_000)]


class QuadraticClient(Block):
    """One client's F(x) = 1/2 x' H x - e' x + c."""

    H: Matrix
    """The Hessian, symmetric, row by row."""
    e: Vector
    """The linear term."""
    c: Finite = 0.0
    """The constant."""
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Weight of the client: p_i is weight over the sum of weights."""

    @model_validator(mode="after")
    def _shapes_agree(self) -> Self:
        dim = len(self.e)
        if len(self.H) != dim or any(len(row) != dim for row in self.H):
            raise ValueError(f"H must be {dim} x {dim}, since e has {dim} entries")
        if any(abs(self.H[i][j] - self.H[j][i]) > 1e-9 for i in range(dim) for j in range(i)):
            raise ValueError("H must be symmetric")
        return self


class LeastSquaresClient(Block):
    """One client's F(x) = 1/(2 n) |A x - b|^2, n the number of rows of A."""

    A: Matrix
    """The features, a row per sample."""
    b: Vector
    """The target of each row."""
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Weight of the client: p_i is weight over the sum of weights (default: the number of its
    rows).
    """

    @model_validator(mode="after")
    def _shapes_agree(self) -> Self:
        if len(self.A) != len(self.b):
            raise ValueError(f"A has {len(self.A)} rows but b has {len(self.b)} entries")
        if any(len(row) != len(self.A[0]) for row in self.A):
            raise ValueError("the rows of A must have equal length")
        return self


class GeneratedProblem(Block):
    """Randomly drawn problem: client optima spread by `heterogeneity`, curvatures by
    `condition_number`.

    Client i's optimum is c_i = centre c + heterogeneity z_i + shift u_i 1, with c and z_i standard
    normal vectors and u_i a standard normal number; F_i(c_i) = 0 for quadratics and, without noise,
    for least squares. FedNova, Fig. 2: any `dim`,
    `clients: 30, centre: 0, heterogeneity: 0.1, condition_number: 1`. FedLin's linear regression:
    `dim: 100, clients: 20, samples: 500, centre: 0, heterogeneity: 1, shift: 3.1623`,
    `condition_number: 1`, and any `noise`.
    """

    dim: Annotated[int, Field(ge=1, le=10_000)] = 10
    """Length of x."""
    clients: ClientCount = 10
    """Number of clients N."""
    heterogeneity: NonNegative = 1.0
    """Deviation of each coordinate of the clients' optima around the common centre; with no
    `shift`, 0 makes all optima equal.
    """
    centre: NonNegative = 1.0
    """Deviation of each coordinate of the common centre from zero."""
    shift: NonNegative = 0.0
    """Standard deviation of a client-specific number added to every coordinate of its optimum."""
    condition_number: Annotated[float, Field(ge=1, le=1e12)] = 10.0
    """Largest over smallest eigenvalue, and 1 the largest, of each H_i (quadratic), or of the
    covariance from which the rows of each A_i are drawn (least squares). The curvatures of least
    squares, the eigenvalues of A_i' A_i / n_i, lie further apart, the more so the fewer rows there
    are: between 0.066 and 1.45 for 100 rows in 10 dimensions and a condition number of 10. So the
    smoothness L of a step size like FedLin's 1 / (6 L) is above 1.
    """
    samples: Annotated[int, Field(ge=1, le=100_000)] = 100
    """Rows of each A_i (least squares only)."""
    noise: NonNegative = 0.0
    """Standard deviation of the noise added to each entry of b_i = A_i c_i (least squares only)."""
    seed: Seed = 0
    """Seed of the problem, the same for all runs."""


class _ExactProblem(Block):
    x0: Vector | None = None
    """Initial global iterate (default: zero)."""
    gradient_noise: NonNegative = 0.0
    """Deviation of the Gaussian noise on each coordinate of each local gradient; 0 leaves it
    exact.
    """
    generate: GeneratedProblem | None = None
    """Draw the clients at random instead of giving them inline."""


class Quadratic(_ExactProblem):
    """Client i holds F_i(x) = 1/2 x' H_i x - e_i' x + c_i.

    Given inline (`clients`) or drawn (`generate`).
    """

    example = {
        "generate": {
            "dim": 2,
            "clients": 3,
            "heterogeneity": 1.0,
            "centre": 1.0,
            "shift": 0.0,
            "condition_number": 10.0,
            "samples": 100,
            "noise": 0.0,
            "seed": 0,
        }
    }

    kind: Literal["quadratic"]
    clients: (
        Annotated[tuple[QuadraticClient, ...], Field(fail_fast=True, min_length=1, max_length=10_000)] | None
    ) = None
    """The clients, given inline."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        _check_exact(self, [len(c.e) for c in self.clients] if self.clients else None)
        return self

    @property
    def dim(self) -> int:
        """Length of x."""
        return len(self.clients[0].e) if self.clients else _generated(self).dim


class LeastSquares(_ExactProblem):
    """Client i holds F_i(x) = 1/(2 n_i) |A_i x - b_i|^2 + ridge |x|^2 / 2; given inline or
    drawn.
    """

    example = {
        "clients": [
            {"A": [[1.0, 0.0], [0.0, 1.0]], "b": [1.0, 2.0]},
            {"A": [[1.0, 1.0]], "b": [0.0], "weight": 2.0},
        ],
        "ridge": 0.01,
    }

    kind: Literal["least_squares"]
    clients: (
        Annotated[tuple[LeastSquaresClient, ...], Field(fail_fast=True, min_length=1, max_length=10_000)]
        | None
    ) = None
    """The clients, given inline."""
    ridge: NonNegative = 0.0
    """Adds ridge |x|^2 / 2 to every client's loss."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        _check_exact(self, [len(c.A[0]) for c in self.clients] if self.clients else None)
        return self

    @property
    def dim(self) -> int:
        """Length of x."""
        return len(self.clients[0].A[0]) if self.clients else _generated(self).dim


ExactProblem = Quadratic | LeastSquares
"""Problems with a known minimiser and no model of their own."""


def _generated(problem: _ExactProblem) -> GeneratedProblem:
    assert problem.generate is not None
    return problem.generate


def _check_exact(problem: "Quadratic | LeastSquares", dims: list[int] | None) -> None:
    if (dims is None) == (problem.generate is None):
        raise ValueError("give either `clients` or `generate`")
    if dims and len(set(dims)) > 1:
        raise ValueError(f"all clients must have the same dimension, not {sorted(set(dims))}")
    dim = dims[0] if dims else _generated(problem).dim
    if problem.x0 is not None and len(problem.x0) != dim:
        raise ValueError(f"x0 must have {dim} entries, not {len(problem.x0)}")
