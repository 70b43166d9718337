"""The engine `compiled`: each client's whole training in machine code, for softmax regression under an affine rule."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from fedcore.core import Algorithm, Upload
from fedcore.engine.affine import pull
from fedcore.engine.assignment import Assignment
from fedcore.problems import Problem


def suits(algorithm: Algorithm, problem: Problem) -> bool:
    """Whether this engine can train `problem` by `algorithm`."""
    return problem.softmax is not None and pull(algorithm.rule) is not None


def compiled(algorithm: Algorithm, problem: Problem, assignment: Assignment) -> Upload:
    """Client by client, longest first, on as many threads as the tensor library has; their number changes no bit."""
    # Here, because machine code is made at the first use, which takes about a second.
    from fedcore.engine import kernels

    data, local, rule = problem.softmax, assignment.local, algorithm.rule
    assert data is not None
    start = local.x.expand(len(assignment.clients), -1)
    matrices = (len(start), *data.shape)
    offsets = rule.direction(torch.zeros_like(start), start, local).contiguous().numpy().reshape(matrices)
    models, x = start.clone().numpy().reshape(matrices), local.x.numpy().reshape(data.shape)
    sizes = assignment.sizes.first_of(int(assignment.steps.max()))
    paces = np.broadcast_to(np.asarray(rule.pace(local.steps)), (len(models), 1))
    number = models.dtype.type

    def work(row: int) -> None:
        client, batches = int(assignment.clients[row]), assignment.batches[row]
        seen = np.ascontiguousarray(batches[:1] if batches.strides[0] == 0 else batches)
        scale = float(data.scale[client])
        share = kernels.Share(data.features, data.labels, data.rows(client), seen, number(scale))
        own = (sizes[: assignment.steps[row]] * paces[row]).astype(number)
        towards, shrink, momentum = map(number, _factors(algorithm, scale * data.l2))
        kernels.train(models[row], x, share, kernels.Recursion(own, offsets[row], towards, shrink, momentum, rule.compares()))

    _each(work, np.argsort(-assignment.steps, kind="stable").tolist())
    return rule.finish(torch.from_numpy(models.reshape(len(models), -1)), local)


def _factors(algorithm: Algorithm, l2: float) -> tuple[float, float, float]:
    """Pull, shrink and momentum of the recursion."""
    solver, towards, shrink = algorithm.solver, pull(algorithm.rule), l2
    assert towards is not None
    if algorithm.rule.compares():
        # With the gradient at x the share that l2 has in it is taken away.
        towards, shrink = towards + l2, 0.0
    return towards + solver.prox_mu, shrink + solver.weight_decay, solver.momentum


def _each(work: Callable[[int], None], rows: Iterable[int]) -> None:
    threads = torch.get_num_threads()
    if threads == 1:
        for row in rows:
            work(row)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, rows))
