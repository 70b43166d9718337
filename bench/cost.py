"""Cost of FedQ: memory, time to start, to install and to evaluate, and speed beside the peers that are
installed, each beside its target and, with `--against`, beside another version, in turn (A B A B).

Memory is proportional set size: pages that processes share are divided among them. Times are wall
clock and, as a remark, processor time of the same process, which other work on the machine changes
less.

    python -m bench cost [--figures help,idle] [--against CHECKOUT] [--turns 2]
        [--write docs/performance.md]
"""

import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from threading import Event, Thread
from typing import Literal, NamedTuple

import numpy as np
import psutil
import torch

from bench import report
from bench.bf16 import times
from bench.compare import CONTENDERS
from bench.generated import images
from bench.options import HOME, among, command
from bench.race import python_of, race
from bench.service import api_start, first_row_s
from bench.workloads import WORKLOADS
from fedcore import ExperimentSpec, Simulation
from fedcore.data.partition import HoldOutPartition
from fedcore.platform import local_credentials
from fedcore.spec.evaluation import Evaluation
from fedq.client import Client
from fedq.embedded import embedded_service
from fedq.planning.evaluation import default_interval

TIMES, FEW, MANY = 5, 3, 50
"""Repetitions, those of what takes long, and the most of rounds."""
LONG_S = 20.0
"""Until no further rounds are played."""
WARM_S, REST_S = 30.0, 10.0
"""Until idle workers have warmed up, and from the end of their runs until they are measured."""
LOOK_S = 0.05


class Figure(NamedTuple):
    """A row of the table."""

    title: str
    target: float
    unit: str
    measure: Callable[[Path], tuple[float, str]]
    """Value and remark, given the folder of the benchmarks. Raises FileNotFoundError where what it
    needs is not installed.
    """
    sense: Literal["at most", "at least"] = "at most"
    """Of the target."""

    def is_met(self, value: float) -> bool:
        """True if `value` meets the target."""
        return value <= self.target if self.sense == "at most" else value >= self.target


def main(arguments: Sequence[str]) -> None:
    """Print a row for each figure, and write the table where requested."""
    parser = command("cost", __doc__)
    parser.add_argument("--figures", type=among(FIGURES), default=list(FIGURES), help=",".join(FIGURES))
    parser.add_argument("--home", type=Path, default=HOME, help="where data and environments lie")
    parser.add_argument("--against", type=Path, help="a checkout of another version, measured in turn")
    parser.add_argument("--turns", type=int, default=2, help="of both versions, of which medians are taken")
    parser.add_argument("--write", type=Path, help="put the table into this page, between its markers")
    options = parser.parse_args(arguments)
    headings = ["what", "measured", "target", "met", "remark"]
    rows = []
    for name in options.figures:
        rows.append(_row(FIGURES[name], name, options))
        print(*rows[-1], sep=" | ", flush=True)
    text = report.table([*headings, "before"] if options.against else headings, rows)
    if options.write is not None:
        report.put(options.write, "cost", text)


def _row(figure: Figure, name: str, options: Namespace) -> list[str]:
    target = f"{figure.sense} {figure.target:g} {figure.unit}"
    before = []
    try:
        if options.against is None:
            value, remark = figure.measure(options.home)
        else:
            value, remark, other = _in_turn(name, options.home, options.against, options.turns)
            before = ["none" if other is None else f"{report.significant(other)} {figure.unit}"]
    except FileNotFoundError as missing:
        return [figure.title, "not measured", target, "", str(missing), *(["none"] * bool(options.against))]
    met = "yes" if figure.is_met(value) else "no"
    return [figure.title, f"{report.significant(value)} {figure.unit}", target, met, remark, *before]


def _in_turn(name: str, home: Path, against: Path, turns: int) -> tuple[float, str, float | None]:
    """Medians of a figure in this checkout, with a remark, and in another: None if it has no such
    figure.
    """
    ours, others, remark = [], [], ""
    for _ in range(turns):
        value, remark = _of_checkout(Path(), name, home)
        ours.append(value)
        with suppress(subprocess.CalledProcessError, FileNotFoundError):
            others.append(_of_checkout(against, name, home)[0])
    return statistics.median(ours), remark, statistics.median(others) if others else None


def _of_checkout(checkout: Path, name: str, home: Path) -> tuple[float, str]:
    """Value and remark of a figure, from the row that `bench cost` of a checkout prints."""
    place = checkout.absolute()
    done = subprocess.run(  # noqa: S603 - our own
        [sys.executable, "-m", "bench", "cost", f"--figures={name}", f"--home={home.absolute()}"],
        cwd=place,
        env=os.environ | {"PYTHONPATH": str(place)},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    _, value, _, met, remark = done.stdout.splitlines()[-1].split(" | ")
    if not met:
        raise FileNotFoundError(remark)
    return float(value.split()[0]), remark


def _command(*arguments: str) -> Callable[[Path], tuple[float, str]]:
    """Median time of `fedq` with these arguments."""

    def measure(_: Path) -> tuple[float, str]:
        turns = [_timed(*arguments) for _turn in range(TIMES)]
        wall, cores = map(statistics.median, zip(*turns, strict=True))
        return wall, f"{cores:.2f} s of processor time"

    return measure


def _timed(*arguments: str) -> tuple[float, float]:
    """Seconds of `fedq` with these arguments, by the clock and of processor time."""
    began, used = time.perf_counter(), _children_s()
    subprocess.run([sys.executable, "-m", "fedq.cli", *arguments], stdout=subprocess.DEVNULL, check=True)  # noqa: S603 - our own
    return time.perf_counter() - began, _children_s() - used


def _plan(home: Path) -> tuple[float, str]:
    """Median time of a plan of the logistic regression on MNIST's shape."""
    with tempfile.TemporaryDirectory(prefix="fedq-") as folder:
        file = Path(folder, "spec.json")
        file.write_text(WORKLOADS["W2"].spec(home / "data").model_dump_json())
        return _command("plan", str(file))(home)


def _run(_: Path) -> tuple[float, str]:
    """Median processor time of `fedq run` of three rounds of digits, its processes included."""
    problem = {"dataset": {"kind": "digits"}, "partition": {"kind": "iid", "clients": 10}}
    document = {
        "name": "three rounds",
        "problem": problem | {"model": {"kind": "mlp"}},
        "algorithm": {"kind": "fedavg"},
        "local": {"lr": 0.1, "steps": 5, "batch_size": 16},
        "rounds": 3,
        "seeds": [0],
    }
    turns = []
    for _turn in range(TIMES):
        with tempfile.TemporaryDirectory(prefix="fedq-") as folder:
            file = Path(folder, "spec.json")
            file.write_text(json.dumps(document))
            turns.append(_timed("run", str(file), f"--output={folder}/out"))
    wall, cores = map(statistics.median, zip(*turns, strict=True))
    return cores, f"of processor time; {wall:.2f} s by the clock"


def _list(folder: Path) -> tuple[float, str]:
    with embedded_service(workers=1) as (url, key):
        os.environ |= {"FEDQ_URL": url, "FEDQ_API_KEY": key}
        try:
            time.sleep(WARM_S)
            return _command("list")(folder)
        finally:
            del os.environ["FEDQ_URL"], os.environ["FEDQ_API_KEY"]


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _api_answers(_: Path) -> tuple[float, str]:
    starts = [api_start() for _ in range(TIMES)]
    return (
        statistics.median(start.seconds for start in starts),
        f"{statistics.median(start.processor_s for start in starts):.2f} s of processor time",
    )


def _api_memory(_: Path) -> tuple[float, str]:
    return api_start().bytes / 1e6, "after its first answer"


def _first_row(_: Path) -> tuple[float, str]:
    seconds = []
    for _stack in range(FEW):
        with embedded_service(workers=1) as (url, key), Client(url, key) as client:
            seconds.append(first_row_s(client))
    return statistics.median(seconds), "submitted as soon as the API answers; libraries are loaded meanwhile"


def _later_row(_: Path) -> tuple[float, str]:
    with embedded_service(workers=1) as (url, key), Client(url, key) as client:
        seconds = [first_row_s(client) for _ in range(2 * TIMES)]
        return statistics.median(seconds[1:]), f"{2 * TIMES - 1} times"


def _idle(_: Path) -> tuple[float, str]:
    with embedded_service(workers=2):
        time.sleep(WARM_S)
        parts = {process.pid: process for process in psutil.Process().children(recursive=True)}
        sizes = {pid: _pss(process) for pid, process in parts.items()}
        return sum(
            sizes.values()
        ) / 1e6, f"{len(sizes)} processes, of which the largest {max(sizes.values()) / 1e6:.0f}"


class _Spent(NamedTuple):
    """Memory of a worker in MB."""

    peak: float
    rested: float


def _spent(spec: ExperimentSpec, home: Path) -> _Spent:
    """Run an experiment on a stack with one worker; memory of the process that computes it."""
    with _stack(home / "data") as client:
        # The one that computes is no other's parent, and the largest of these.
        leaves = [part for part in psutil.Process().children(recursive=True) if not part.children()]
        worker = max(leaves, key=lambda process: process.memory_info().rss)
        ended, peak = Event(), [0]

        def watch() -> None:
            while not ended.wait(LOOK_S):
                peak[0] = max(peak[0], _pss(worker))

        watcher = Thread(target=watch)
        watcher.start()
        try:
            finished = client.wait(client.submit(spec).id)
        finally:
            ended.set()
            watcher.join()
        assert finished.status == "succeeded", finished
        time.sleep(REST_S)
        return _Spent(peak[0] / 1e6, _pss(worker) / 1e6)


@contextmanager
def _stack(data: Path) -> Iterator[Client]:
    """A stack with one worker that has warmed up and reads `data`."""
    with tempfile.TemporaryDirectory(prefix="fedq-") as folder:
        home, ready = Path(folder), Path(folder, "ready")
        options = (f"--home={home}", "--port=0", "--workers=1", f"--ready-file={ready}")
        supervisor = subprocess.Popen(  # noqa: S603 - our own
            [sys.executable, "-m", "workers.embedded.supervisor", *options],
            env=os.environ | {"FEDQ_DATA_DIR": str(data.absolute())},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            while not ready.exists():
                time.sleep(LOOK_S)
            time.sleep(WARM_S)
            with Client(ready.read_text(), local_credentials.load(home)) as client:
                yield client
        finally:
            supervisor.terminate()
            supervisor.wait()


def _pss(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0


def _logistic(home: Path) -> ExperimentSpec:
    """MNIST's shape, in bytes."""
    return _spec(home, "mnist-bytes", (1, 28, 28), {"kind": "logistic"}, seeds=4, rounds=20)


def _cifar(home: Path, seeds: int) -> ExperimentSpec:
    model = {"kind": "cnn", "channels": [16, 16], "hidden": [64]}
    return _spec(home, "cifar-bytes", (3, 32, 32), model, seeds=seeds, rounds=3)


def _spec(
    home: Path, name: str, shape: tuple[int, ...], model: Mapping[str, object], *, seeds: int, rounds: int
) -> ExperimentSpec:
    return ExperimentSpec.model_validate(
        {
            "name": name,
            "problem": {
                "dataset": images(name, shape, home / "data", samples=60_000, dtype=np.uint8)
                | {"kind": "local"},
                "partition": {"kind": "iid", "clients": 100},
                "model": model,
            },
            "algorithm": {"kind": "fedavg"},
            "local": {"lr": 1e-6, "epochs": 1, "batch_size": 32},
            "participation": {"kind": "uniform", "clients_per_round": 10},
            "rounds": rounds,
            "seeds": list(range(seeds)),
        }
    )


def _peak(home: Path) -> tuple[float, str]:
    return _spent(_logistic(home), home).peak, "of the process that computes the rounds"


def _rested(home: Path) -> tuple[float, str]:
    return _spent(_logistic(home), home).rested, "the same, ten seconds after the last round"


def _eight(home: Path) -> tuple[float, str]:
    one, eight = (_spent(_cifar(home, seeds), home).peak for seeds in (1, 8))
    return eight / one, f"{eight:.0f} MB and {one:.0f} MB"


def _first_round(name: str) -> Callable[[Path], tuple[float, str]]:
    """Peak of FedQ until the end of its first round, over that of the lightest peer on PyTorch that
    is installed.
    """

    def measure(home: Path) -> tuple[float, str]:
        peers = ["loop"]
        with suppress(FileNotFoundError):
            python_of("pfl", home)
            peers.append("pfl")
        contenders = [["fedq", "auto"], *([peer] for peer in peers)]
        entries = race(WORKLOADS[name], home, contenders, 0, inf).entries
        ours, *theirs = (entry.peak_bytes / 1e6 for entry in entries)
        others = ", ".join(
            f"{report.TITLES[peer]} {peak:.0f} MB" for peer, peak in zip(peers, theirs, strict=True)
        )
        return ours / min(theirs), f"{ours:.0f} MB; {others}"

    return measure


def _evaluation(name: str) -> Callable[[Path], tuple[float, str]]:
    """Seconds of evaluations as new experiments have them, over those of the training."""

    def measure(home: Path) -> tuple[float, str]:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            every, trained_s, evaluated_s = pool.apply(_rounds, (name, home))
        remark = f"every {every} rounds; {evaluated_s:.3g} s and {trained_s:.3g} s a round"
        return evaluated_s / (every * trained_s), remark

    return measure


def _rounds(name: str, home: Path) -> tuple[int, float, float]:
    """The default interval of evaluations, the mean seconds of a round without evaluation, and the median
    of what the same rounds with it take longer, in turn, on all cores.
    """
    torch.set_num_threads(os.cpu_count() or 1)
    spec, data = _published(name, home)
    cheap = Evaluation(training_loss="sample")
    every = default_interval(spec.model_copy(update={"evaluation": cheap}))
    runs = []
    for evaluation in (spec.evaluation, cheap):
        run = Simulation(spec.model_copy(update={"evaluation": evaluation}), 0, data_dir=data)
        run.advance()
        runs.append((run, list[float]()))
    end = time.perf_counter() + LONG_S
    for turn in range(MANY):
        if turn and time.perf_counter() > end:
            break
        for run, seconds in runs:
            began = time.perf_counter()
            run.advance()
            seconds.append(time.perf_counter() - began)
    trained, both = (seconds for _, seconds in runs)
    evaluated_s = statistics.median(one - other for one, other in zip(both, trained, strict=True))
    return every, statistics.mean(trained), evaluated_s


def _published(name: str, home: Path) -> tuple[ExperimentSpec, Path]:
    """A workload and the folder of its data, of the size for which the interval is chosen."""
    workload, data = WORKLOADS[name], home / "data"
    if workload.published is not None:
        workload, data = replace(workload, problem=workload.published), home / "published"
    spec = workload.spec(data)
    if isinstance(spec.problem.partition, HoldOutPartition):
        # The generated images have no test part; MNIST's and CIFAR-10's are a sixth.
        document = spec.model_dump(mode="json")
        document["problem"]["partition"]["hold_out"] = 1 / 6
        spec = ExperimentSpec.model_validate(document)
    return spec, data


def _speed(name: str, peers: Sequence[str] = CONTENDERS) -> Callable[[Path], tuple[float, str]]:
    """Seconds of the fastest of the installed `peers` over FedQ's, for the same rounds."""

    def measure(home: Path) -> tuple[float, str]:
        workload, present = WORKLOADS[name], []
        missing = FileNotFoundError(f"none of {', '.join(peers)} has this model")
        for peer in peers:
            if peer not in workload.without:
                try:
                    python_of(peer, home)
                    present.append(peer)
                except FileNotFoundError as error:
                    missing = error
        if not present:
            raise missing
        contenders = [["fedq", "auto"], *([peer] for peer in present)]
        entries = race(workload, home, contenders, TIMES, inf).entries
        ours, *theirs = (statistics.median(turn.seconds for turn in entry.turns) for entry in entries)
        best = min(theirs)
        return best / ours, f"{report.TITLES[present[theirs.index(best)]]} is the fastest of {len(theirs)}"

    return measure


def _bfloat16(home: Path) -> tuple[float, str]:
    torch.set_num_threads(os.cpu_count() or 1)
    _, single, half = times("W3", home / "data", TIMES)
    return statistics.median(single) / statistics.median(half), "autocast, if the processor has bfloat16"


def _demo(_: Path) -> tuple[float, str]:
    """Seconds from a clone of this checkout to the table of `make demo`."""
    with tempfile.TemporaryDirectory(prefix="fedq-") as folder:
        subprocess.run(["git", "clone", "--quiet", str(Path.cwd()), folder], check=True)  # noqa: S603, S607 - our own
        began = time.perf_counter()
        subprocess.run(["make", "-C", folder, "demo"], check=True, stdout=subprocess.DEVNULL)  # noqa: S603, S607 - our own
        seconds = time.perf_counter() - began
        size = sum(file.lstat().st_size for file in Path(folder, ".venv").rglob("*") if file.is_file())
    return seconds, f"{size / 1e9:.1f} GB installed; at most 180 s at 50 MB/s"


FIGURES = {
    "help": Figure("`fedq --help`", 0.3, "s", _command("--help")),
    "list": Figure("`fedq list`", 0.6, "s", _list),
    "plan": Figure("`fedq plan` of MNIST's shape", 0.5, "s", _plan),
    "run": Figure("`fedq run` of three rounds of digits", 5.0, "s", _run),
    "api": Figure("the API answers after its start", 1.0, "s", _api_answers),
    "api-memory": Figure("memory of the API", 110, "MB", _api_memory),
    "first-row": Figure("first row of the first run of a stack", 2.0, "s", _first_row),
    "later-row": Figure("first row of later runs", 0.1, "s", _later_row),
    "idle": Figure("idle stack with two warm workers", 900, "MB", _idle),
    "peak": Figure("four runs on MNIST's shape: peak of a worker", 900, "MB", _peak),
    "rest": Figure("four runs on MNIST's shape: ten seconds later", 600, "MB", _rested),
    "eight": Figure("eight runs on CIFAR-10's shape, over one: peak", 1.3, "times", _eight),
    **{
        name: Figure(f"{name}, over the lightest peer on PyTorch: peak", 1.2, "times", _first_round(name))
        for name in ("W1", "W2", "W3", "W4", "W5", "W6")
    },
    **{
        f"{name}-evaluation": Figure(
            f"{name}, evaluation over the training of a round", 0.2, "times", _evaluation(name)
        )
        for name in WORKLOADS
    },
    **{
        f"{name}-speed": Figure(
            f"{name}, speed over the best peer", target, "times", _speed(name), "at least"
        )
        for name, target in (("W3", 1.4), ("W5", 1.8), ("W6", 1.3), ("W7", 1.3), ("W8", 1.3))
    },
    **{
        f"{name}-fedjax": Figure(
            f"{name}, speed over FedJAX", target, "times", _speed(name, ["fedjax"]), "at least"
        )
        for name, target in (("W2", 20), ("W4", 8))
    },
    "bf16": Figure("W3, speed of bfloat16 over float32", 1.6, "times", _bfloat16, "at least"),
    "demo": Figure("from a clone to the table of `make demo`", 180, "s", _demo),
}
"""Figures by name; one more is one more line."""
