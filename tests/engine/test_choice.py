"""`auto`: which engine is picked, by measurements that are made up here, and that a run keeps
it.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedcore import Simulation
from fedcore.engine.assignment import Job
from fedcore.engine.benchmark import BUDGET_S, HELD_BYTES, MOST, BenchmarkCache, benchmark_cache_at
from fedcore.engine.choice import EngineChoice, SelectionContext, choose_engine, conditions
from fedcore.engine.engines import EngineName, candidates
from fedcore.errors import SpecificationError
from fedcore.settings import settings
from tests.documents import QUADRATIC, SYNTHETIC, specification
from tests.support.accelerated import NEEDS_COMPILED

pytestmark = NEEDS_COMPILED
CONTENDERS: tuple[EngineName, ...] = ("compiled", "vectorised", "parallel")


class Stopwatch:
    """Engines that take `call` seconds for a call and `step` for each local step."""

    def __init__(self, call: dict[EngineName, float] | None = None, **step: float) -> None:
        self.call, self.step = call or {}, step
        self.played: list[EngineName] = []
        self.clients: list[int] = []
        self.seconds = 0.0

    def __call__(self, name: EngineName, job: Job) -> float:
        assignment = job.work
        assert [len(batches) for batches in assignment.batches] == assignment.steps.tolist()
        assert len(assignment.clients) == len(assignment.local.steps) == len(assignment.batches)
        self.played.append(name)
        self.clients.append(len(assignment.clients))
        seconds = self.call.get(name, 0.0) + self.step[name] * int(assignment.steps.sum())
        self.seconds += seconds
        return seconds


@pytest.fixture(scope="module")
def simulation() -> Simulation:
    return Simulation(specification(SYNTHETIC), seed=0)


@pytest.fixture
def pick(simulation: Simulation) -> Callable[..., EngineChoice]:
    def picked(
        stopwatch: Stopwatch,
        experience: BenchmarkCache | None = None,
        rounds: int = 100_000,
        held_bytes: int = HELD_BYTES,
        **more: Any,
    ) -> EngineChoice:
        setting = simulation._setting
        candidacy = SelectionContext(
            setting.algorithm, setting.problem, rounds, simulation._sample, held_bytes=held_bytes
        )
        return choose_engine("auto", candidacy, experience or BenchmarkCache(None), play=stopwatch, **more)

    return picked


def test_the_presumed_order_is_that_of_how_much_an_engine_is_made_for_the_problem(
    simulation: Simulation,
) -> None:
    assert tuple(candidates(simulation._setting.algorithm, simulation._setting.problem)) == CONTENDERS


def test_the_fastest_is_taken_with_what_was_measured(pick: Callable[..., EngineChoice]) -> None:
    made = pick(Stopwatch(compiled=2e-5, vectorised=1e-5, parallel=3e-5))
    assert (made.engine, made.how) == ("vectorised", "measured")
    assert made.seconds == pytest.approx({"compiled": 2e-5, "vectorised": 1e-5, "parallel": 3e-5})


def test_an_engine_that_gains_by_many_clients_is_measured_with_many(
    pick: Callable[..., EngineChoice],
) -> None:
    made = pick(Stopwatch({"vectorised": 1e-3}, compiled=1e-4, vectorised=1e-6, parallel=2e-4))
    assert made.engine == "vectorised"


def test_of_near_ties_the_presumed_one_wins(pick: Callable[..., EngineChoice]) -> None:
    assert pick(Stopwatch(compiled=1e-5, vectorised=0.9e-5, parallel=0.95e-5)).engine == "compiled"


class Interrupted(Stopwatch):
    """Engines beside other processes, which take the core twice at every size while `compiled` runs."""

    def __init__(self, **step: float) -> None:
        super().__init__(None, **step)
        self.sizes: Counter[tuple[int, int]] = Counter()

    def __call__(self, name: EngineName, job: Job) -> float:
        seconds = super().__call__(name, job)
        if name != "compiled":
            return seconds
        size = len(job.work.clients), int(job.work.steps.sum())
        self.sizes[size] += 1
        return seconds + (2e-3 if self.sizes[size] <= 2 else 0.0)


def test_the_load_of_other_processes_does_not_make_the_fastest_engine_lose(
    pick: Callable[..., EngineChoice],
) -> None:
    made = pick(Interrupted(compiled=1e-6, vectorised=2e-6, parallel=4e-6))
    assert (made.engine, made.how) == ("compiled", "measured")


def test_a_measurement_keeps_to_its_budget_and_plays_no_more_with_those_far_behind(
    pick: Callable[..., EngineChoice],
) -> None:
    stopwatch = Stopwatch(compiled=1e-5, vectorised=1.5e-5, parallel=1e-3)
    pick(stopwatch)
    assert stopwatch.seconds < 2 * BUDGET_S
    assert "parallel" not in stopwatch.played[-2:]


def test_a_long_round_allows_a_longer_measurement_and_one_who_exceeds_even_that_is_judged_at_once(
    pick: Callable[..., EngineChoice],
) -> None:
    stopwatch = Stopwatch(compiled=0.01, vectorised=3.0, parallel=4.0)
    made = pick(stopwatch)
    assert (made.engine, made.how, stopwatch.played.count("vectorised")) == ("compiled", "measured", 2)
    assert made.seconds == pytest.approx({"compiled": 0.01, "vectorised": 3.0, "parallel": 4.0})


def test_a_measurement_holds_no_more_models_at_a_time_than_there_is_room_for(
    pick: Callable[..., EngineChoice], simulation: Simulation
) -> None:
    x = simulation._server.x
    stopwatch = Stopwatch(compiled=1e-5, vectorised=1e-5, parallel=1e-5)
    assert pick(stopwatch, held_bytes=3 * 6 * x.numel() * x.element_size()).how == "measured"
    assert max(stopwatch.clients) == 3


def test_a_run_too_short_to_gain_takes_the_presumed_engine_and_looks_once(
    pick: Callable[..., EngineChoice],
) -> None:
    stopwatch, experience = Stopwatch(compiled=2e-5, vectorised=1e-5, parallel=1e-5), BenchmarkCache(None)
    for _ in range(2):
        assert pick(stopwatch, experience, rounds=2) == EngineChoice("compiled", "presumed")
    assert stopwatch.played == ["compiled"] * 2


def test_what_was_measured_is_remembered_in_the_process_and_on_disk(
    pick: Callable[..., EngineChoice], tmp_path: Path
) -> None:
    path, stopwatch = (
        tmp_path / "cache" / "engines.json",
        Stopwatch(compiled=2e-5, vectorised=1e-5, parallel=3e-5),
    )
    experience = BenchmarkCache(path)
    first = pick(stopwatch, experience)
    stopwatch.played.clear()
    for later in (experience, BenchmarkCache(path)):
        again = pick(stopwatch, later)
        assert (again.engine, again.how, again.seconds) == (first.engine, "remembered", first.seconds)
    assert not stopwatch.played


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\x00", b"[]", b'{"entries": {"a": {"engine": "warp"}}}'])
def test_a_damaged_file_is_measured_anew_and_written_over(
    pick: Callable[..., EngineChoice], tmp_path: Path, damage: bytes
) -> None:
    path = tmp_path / "engines.json"
    path.write_bytes(damage)
    stopwatch = Stopwatch(compiled=2e-5, vectorised=1e-5, parallel=3e-5)
    assert pick(stopwatch, BenchmarkCache(path)).how == "measured"
    assert pick(stopwatch, BenchmarkCache(path)).how == "remembered"


def test_a_place_that_cannot_be_written_is_no_error(
    pick: Callable[..., EngineChoice], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    experience = BenchmarkCache(tmp_path / "file" / "engines.json")
    stopwatch = Stopwatch(compiled=2e-5, vectorised=1e-5, parallel=3e-5)
    assert [pick(stopwatch, experience).how for _ in range(2)] == ["measured", "remembered"]


def test_what_another_process_found_meanwhile_stands(
    pick: Callable[..., EngineChoice], tmp_path: Path
) -> None:
    path = tmp_path / "engines.json"
    ours, theirs = BenchmarkCache(path), BenchmarkCache(path)
    pick(Stopwatch(compiled=1e-5, vectorised=3e-5, parallel=3e-5), theirs)

    class Late(BenchmarkCache):
        def get(self, what: Any) -> None:
            return None

    ours = Late(path)
    assert pick(Stopwatch(compiled=3e-5, vectorised=1e-5, parallel=3e-5), ours).engine == "compiled"


def test_the_file_does_not_grow_without_end(tmp_path: Path) -> None:
    path = tmp_path / "engines.json"
    entry = BenchmarkCache(None).put({}, "compiled", {"compiled": 1.0}).model_dump_json()
    entries = ", ".join(f'"{number}": {entry}' for number in range(MOST))
    path.write_text(f'{{"entries": {{{entries}}}}}')
    BenchmarkCache(path).put({"new": 1}, "compiled", {"compiled": 1.0})
    assert path.read_text().count('"seconds"') == MOST
    assert BenchmarkCache(path).get({"new": 1}) is not None


def test_what_matters_is_measured_apart(simulation: Simulation) -> None:
    def key(simulation: Simulation, versions: dict[str, str] | None = None) -> str:
        job = simulation._sample()
        assert job is not None
        return str(conditions(["compiled", "vectorised"], job, versions))

    others = [
        Simulation(specification(SYNTHETIC, **changes), seed=0)
        for changes in (
            {"execution": {"precision": "float32"}},
            {"local": {"batch_size": 64}},
            {"local": {"optimizer": {"momentum": 0.9}}},
            {"algorithm": {"kind": "scaffold"}},
            {"participation": {"kind": "uniform", "clients_per_round": 2}},
            {"problem": {"model": {"kind": "mlp", "hidden": [7]}}},
        )
    ]
    keys = {key(one) for one in (simulation, *others)}
    keys.add(key(simulation, {"fedq": "another"}))
    assert len(keys) == len(others) + 2


def test_a_recorded_engine_goes_on_unmeasured(pick: Callable[..., EngineChoice]) -> None:
    stopwatch, recorded = Stopwatch(), EngineChoice("parallel", "measured", {"parallel": 1e-9})
    assert pick(stopwatch, recorded=recorded) == recorded == EngineChoice.of(recorded.document())
    assert not stopwatch.played


def test_a_recorded_engine_that_cannot_go_on_here_is_named_beside_the_new_one() -> None:
    setting = (simulation := Simulation(specification(QUADRATIC), seed=0))._setting
    candidacy = SelectionContext(setting.algorithm, setting.problem, 1, simulation._sample)
    made = choose_engine("auto", candidacy, BenchmarkCache(None), EngineChoice("compiled", "measured"))
    assert (made.instead_of, made.engine, made.how) == ("compiled", "vectorised", "presumed")


def test_an_engine_by_name_is_forced(simulation: Simulation) -> None:
    setting = simulation._setting
    candidacy = SelectionContext(setting.algorithm, setting.problem, 100_000, simulation._sample)
    assert choose_engine(
        "reference", candidacy, BenchmarkCache(None), EngineChoice("compiled", "measured")
    ) == EngineChoice("reference", "forced")


@pytest.mark.parametrize("document", [None, {}, {"engine": "warp", "how": "measured"}, "compiled"])
def test_what_was_recorded_otherwise_counts_as_nothing(document: object) -> None:
    assert EngineChoice.of(document) is None


def test_a_run_taken_over_elsewhere_goes_on_with_its_engine_in_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = specification(SYNTHETIC, rounds=4)

    def on_a_machine_where(engine: EngineName) -> None:
        """Such a machine remembers that `engine` is the fastest."""
        path = tmp_path / f"{engine}.json"
        monkeypatch.setenv("FEDQ_ENGINE_CACHE", str(path))
        settings.cache_clear()
        # With an engine by name nothing is measured, which on a busy machine might come first.
        job = Simulation(specification(SYNTHETIC, rounds=4, execution={"engine": "reference"}), 0)._sample()
        assert job is not None
        what = conditions(candidates(job.algorithm, job.problem), job)
        benchmark_cache_at(path).put(what, engine, {engine: 1e-9})

    on_a_machine_where("vectorised")
    whole, begun = Simulation(spec, seed=0), Simulation(spec, seed=0)
    losses = [whole.advance().train_loss for _ in range(4)]
    begun.advance()
    saved = begun.checkpoint()
    on_a_machine_where("compiled")
    resumed, told = (
        Simulation(spec, seed=0),
        Simulation(spec, seed=0, recorded=EngineChoice("vectorised", "measured")),
    )
    assert (resumed.engine, told.engine) == ("compiled", "vectorised")
    resumed.restore(saved)
    assert resumed.engine == "vectorised"
    assert [resumed.advance().train_loss for _ in range(3)] == losses[1:]
    assert [told.advance().train_loss for _ in range(4)] == losses


def test_an_engine_that_is_not_made_for_the_problem_is_refused_by_what_it_is_made_for() -> None:
    with pytest.raises(SpecificationError, match="`compiled` supports only"):
        Simulation(specification(QUADRATIC, execution={"engine": "compiled"}), seed=0)
