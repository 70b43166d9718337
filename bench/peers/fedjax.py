"""FedJAX: `fedjax.for_each_client` with its JIT backend and its SGD, on today's JAX with the
removed `jax.tree_map` put back.

As in its own `fed_avg`, save that the batches are the task's. The short last one of an epoch is
padded and masked, as by `ClientDataset.padded_batch`, so that there is one shape to compile.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

if not hasattr(jax, "tree_map"):
    jax.tree_map = jax.tree_util.tree_map

import fedjax
import jax.numpy as jnp

from bench.peers.common import Arrays, Assigned, Channel, Task, folder, serve

MASK = fedjax.EXAMPLE_MASK_KEY


class FedJax:
    """FedAvg as FedJAX's own algorithm writes it."""

    def __init__(self, folder: Path) -> None:
        self._task = Task(folder)
        self._parameters = {name: jnp.asarray(value) for name, value in self._task.initial.items()}
        self._train = _for_each_client(self._task)
        self._draws = self._task.model["kind"] == "dropout_cnn"

    def play(self, round: int) -> int:
        """Every client of the cohort, then their weighted mean."""
        cohort = self._task.cohort(round)
        weights = {assigned.client: assigned.weight for assigned in cohort}
        keys = jax.random.split(jax.random.key(round), len(cohort)) if self._draws else [None] * len(cohort)
        clients = [
            (assigned.client, self._batches(assigned), key)
            for assigned, key in zip(cohort, keys, strict=True)
        ]
        deltas = ((delta, weights[client]) for client, delta in self._train(self._parameters, clients))
        mean = fedjax.tree_util.tree_mean(deltas)
        self._parameters = jax.block_until_ready(jax.tree_util.tree_map(jnp.subtract, self._parameters, mean))
        return sum(len(assigned.batches) for assigned in cohort)

    def _batches(self, assigned: Assigned) -> Iterator[dict[str, NDArray[Any]]]:
        features, labels = self._task.data(assigned.client)
        size = self._task.batch_size
        for batch in assigned.batches:
            index = np.zeros(size, np.int64)
            index[: len(batch)] = batch
            yield {"x": features[index], "y": labels[index], MASK: np.arange(size) < len(batch)}

    def model(self) -> Arrays:
        """As it is."""
        return {name: np.asarray(value) for name, value in self._parameters.items()}

    def tune(self) -> None:
        """The compiler does."""

    def describe(self) -> str:
        """The backend."""
        return "JIT backend"


def _for_each_client(task: Task) -> Any:
    optimiser, scores = fedjax.optimizers.sgd(task.lr), _scores(task)

    def loss(parameters: Any, batch: Any, key: Any) -> Any:
        drawn = () if key is None else (key,)
        chosen = jnp.take_along_axis(
            jax.nn.log_softmax(scores(parameters, batch["x"], *drawn)), batch["y"][:, None], axis=1
        )[:, 0]
        return -jnp.sum(chosen * batch[MASK]) / jnp.sum(batch[MASK])

    def init(parameters: Any, key: Any) -> Any:
        return {"parameters": parameters, "optimiser": optimiser.init(parameters), "key": key}

    def step(state: Any, batch: Any) -> Any:
        key, drawn = (None, None) if state["key"] is None else jax.random.split(state["key"])
        gradient = jax.grad(loss)(state["parameters"], batch, drawn)
        kept, parameters = optimiser.apply(gradient, state["optimiser"], state["parameters"])
        return {"parameters": parameters, "optimiser": kept, "key": key}

    def final(parameters: Any, state: Any) -> Any:
        return jax.tree_util.tree_map(jnp.subtract, parameters, state["parameters"])

    return fedjax.for_each_client(init, step, final)


def _scores(task: Task) -> Any:
    match task.model["kind"]:
        case "logistic" | "mlp":
            return lambda named, x: _dense(named, x.reshape(len(x), -1), 1)
        case "cnn":
            return _cnn
        case "dropout_cnn":
            return _dropout_cnn
        case "char_lstm":
            return lambda named, x: _lstm(named, x, task.model["layers"])
        case kind:
            raise ValueError(f"there is no function for the model {kind}")


def _dense(named: Any, x: Any, first: int) -> Any:
    """Layers `first`, `first` + 2, ... with ReLU between them."""
    last = max(int(name.split(".")[0]) for name in named)
    for place in range(first, last, 2):
        x = jax.nn.relu(x @ named[f"{place}.weight"].T + named[f"{place}.bias"])
    return x @ named[f"{last}.weight"].T + named[f"{last}.bias"]


def _cnn(named: Any, x: Any) -> Any:
    """Channels last, as XLA has them on a CPU."""
    x = x.transpose(0, 2, 3, 1)
    for place in (0, 3):
        x = _pooled(_convolved(named, x, place, "SAME"))
    return _dense(named, x.transpose(0, 3, 1, 2).reshape(len(x), -1), 7)


def _dropout_cnn(named: Any, x: Any, key: Any) -> Any:
    """The masks are those of `key`."""
    x = x.transpose(0, 2, 3, 1)
    for place in (0, 2):
        x = _convolved(named, x, place, "VALID")
    early, late = jax.random.split(key)
    x = _dropped(_pooled(x), 0.25, early)
    x = jax.nn.relu(x.transpose(0, 3, 1, 2).reshape(len(x), -1) @ named["7.weight"].T + named["7.bias"])
    return _dropped(x, 0.5, late) @ named["10.weight"].T + named["10.bias"]


def _convolved(named: Any, x: Any, place: int, padding: str) -> Any:
    kernel = named[f"{place}.weight"].transpose(2, 3, 1, 0)
    x = jax.lax.conv_general_dilated(x, kernel, (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jax.nn.relu(x + named[f"{place}.bias"])


def _pooled(x: Any) -> Any:
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def _dropped(x: Any, rate: float, key: Any) -> Any:
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)


def _lstm(named: Any, symbols: Any, layers: int) -> Any:
    """Layer after layer, each scanned over the characters."""
    x = named["embedding.weight"][symbols.astype(jnp.int32)].swapaxes(0, 1)
    for layer in range(layers):
        inputs = (
            x @ named[f"lstm.weight_ih_l{layer}"].T
            + named[f"lstm.bias_ih_l{layer}"]
            + named[f"lstm.bias_hh_l{layer}"]
        )
        x = _scanned(inputs, named[f"lstm.weight_hh_l{layer}"].T)
    return x[-1] @ named["output.weight"].T + named["output.bias"]


def _scanned(inputs: Any, recurrent: Any) -> Any:
    """The outputs [T, B, H] of a layer whose gates have the `inputs` [T, B, 4 H]."""

    def step(carried: Any, gates: Any) -> Any:
        output, cell = carried
        enter, keep, candidate, leave = jnp.split(gates + output @ recurrent, 4, axis=-1)
        cell = jax.nn.sigmoid(keep) * cell + jax.nn.sigmoid(enter) * jnp.tanh(candidate)
        output = jax.nn.sigmoid(leave) * jnp.tanh(cell)
        return (output, cell), output

    start = jnp.zeros((inputs.shape[1], recurrent.shape[0]), inputs.dtype)
    return jax.lax.scan(step, (start, start), inputs)[1]


if __name__ == "__main__":
    channel = Channel()
    serve(channel, FedJax(folder()))
