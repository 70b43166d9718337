"""`problem.dataset`: the data sets and the small exact problems that can be asked for."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedcore.spec.base import MAX_CLIENTS, Block, Finite, NonNegative, Seed
from fedcore.spec.uploaded import Uploaded

Vector = Annotated[tuple[Finite, ...], Field(min_length=1, max_length=10_000)]
Matrix = Annotated[tuple[Vector, ...], Field(min_length=1, max_length=100_000)]
ClientCount = Annotated[int, Field(ge=1, le=MAX_CLIENTS)]


class Synthetic(Block):
    """Synthetic(alpha, beta) of FedProx, Section 5.1: softmax labels over 60 Gaussian features, one distribution per client."""

    kind: Literal["synthetic"]
    alpha: NonNegative = 1.0
    """Deviation of the clients' model means u_k: how much the clients' true models differ."""
    beta: NonNegative = 1.0
    """Deviation of the clients' feature means B_k: how much the clients' inputs differ."""
    iid: bool = False
    """One model and one input distribution for every client; alpha and beta then play no part."""
    clients: ClientCount = 30
    """Number of clients N."""
    seed: Seed | None = None
    """Fixes the data over all runs; absent, each run draws its own from its seed."""


class Digits(Block):
    """The 1,797 real handwritten digits (8 x 8) that ship with scikit-learn; one in five held out for testing."""

    kind: Literal["digits"]


class Mnist(Block):
    """MNIST: 60,000 training and 10,000 test images of handwritten digits, 28 x 28."""

    kind: Literal["mnist"]


class FashionMnist(Block):
    """Fashion-MNIST: 60,000 training and 10,000 test images of clothing, 28 x 28."""

    kind: Literal["fashion_mnist"]


class Emnist(Block):
    """EMNIST (Cohen et al., 2017), 28 x 28, one of its published splits."""

    kind: Literal["emnist"]
    split: Literal["balanced", "byclass", "bymerge", "digits", "letters", "mnist"] = "balanced"
    """Which of the published splits: `balanced`, `bymerge` and `byclass` of all characters, or one of its parts."""


class Cifar10(Block):
    """CIFAR-10: 50,000 training and 10,000 test colour images, 32 x 32."""

    kind: Literal["cifar10"]


class QuadraticClient(Block):
    """One client's F(x) = 1/2 x' H x - e' x + c."""

    H: Matrix
    """The Hessian, symmetric, row by row."""
    e: Vector
    """The linear term."""
    c: Finite = 0.0
    """The constant."""
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Its share p_i is weight over the sum of weights."""

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
    """Its share p_i is weight over the sum of weights; absent, the number of its rows."""

    @model_validator(mode="after")
    def _shapes_agree(self) -> Self:
        if len(self.A) != len(self.b):
            raise ValueError(f"A has {len(self.A)} rows but b has {len(self.b)} entries")
        if any(len(row) != len(self.A[0]) for row in self.A):
            raise ValueError("the rows of A must have one length")
        return self


class GeneratedProblem(Block):
    """How to draw an exact problem: client optima spread by `heterogeneity`, curvatures by `condition_number`."""

    dim: Annotated[int, Field(ge=1, le=10_000)] = 10
    """Length of x."""
    clients: ClientCount = 10
    """Number of clients N."""
    heterogeneity: NonNegative = 1.0
    """Deviation of the clients' optima around the common one; 0 makes all optima equal."""
    condition_number: Annotated[float, Field(ge=1, le=1e12)] = 10.0
    """Largest over smallest eigenvalue of each H_i (quadratic); of each A_i' A_i / n_i (least squares)."""
    samples: Annotated[int, Field(ge=1, le=100_000)] = 100
    """Rows of each A_i (least squares only)."""
    seed: Seed = 0
    """Fixes the problem over all runs."""


class _ExactProblem(Block):
    x0: Vector | None = None
    """Where the global iterate starts; absent, at zero."""
    gradient_noise: NonNegative = 0.0
    """Deviation of the Gaussian noise on each coordinate of each local gradient; 0 leaves it exact."""
    generate: GeneratedProblem | None = None
    """Draw the clients like this, instead of giving them inline."""


class Quadratic(_ExactProblem):
    """Client i holds F_i(x) = 1/2 x' H_i x - e_i' x + c_i; given inline (`clients`) or drawn (`generate`)."""

    kind: Literal["quadratic"]
    clients: Annotated[tuple[QuadraticClient, ...], Field(min_length=1, max_length=10_000)] | None = None
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
    """Client i holds F_i(x) = 1/(2 n_i) |A_i x - b_i|^2 + ridge |x|^2 / 2; given inline or drawn."""

    kind: Literal["least_squares"]
    clients: Annotated[tuple[LeastSquaresClient, ...], Field(min_length=1, max_length=10_000)] | None = None
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


FederatedDataset = Synthetic | Quadratic | LeastSquares
"""Data sets that come divided into clients; a partition for them is refused."""


def comes_divided(dataset: "AnyDataset") -> bool:
    """Whether a data set comes divided into clients; uploaded data do when they say who holds what."""
    if isinstance(dataset, Uploaded):
        return dataset.known.clients is not None
    return isinstance(dataset, FederatedDataset)


ExactProblem = Quadratic | LeastSquares
"""Problems with a known minimiser and no model of their own."""

AnyDataset = Annotated[
    Synthetic | Digits | Mnist | FashionMnist | Emnist | Cifar10 | Uploaded | Quadratic | LeastSquares,
    Field(discriminator="kind"),
]


def _generated(problem: _ExactProblem) -> GeneratedProblem:
    assert problem.generate is not None
    return problem.generate


def _check_exact(problem: "Quadratic | LeastSquares", dims: list[int] | None) -> None:
    if (dims is None) == (problem.generate is None):
        raise ValueError("give the clients inline (`clients`) or say how to draw them (`generate`), one of the two")
    if dims and len(set(dims)) > 1:
        raise ValueError(f"all clients must have one dimension, not {sorted(set(dims))}")
    dim = dims[0] if dims else _generated(problem).dim
    if problem.x0 is not None and len(problem.x0) != dim:
        raise ValueError(f"x0 must have {dim} entries, not {len(problem.x0)}")
