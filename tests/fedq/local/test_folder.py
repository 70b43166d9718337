"""The folder of an experiment without a service: what it refuses, and what survives a kill."""

import json
import os
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from fedcore import Simulation
from fedcore.platform.status import Status
from fedcore.simulation.report import RoundReport
from fedq.local.experiment import ArrayPart, LocalExperiment, results
from fedq.local.folder import BEST_MODEL, MODEL, ROUNDS, RUN, ExperimentFolder, FolderError, RunKey, archive
from tests.builders.specifications import QUADRATIC, specification

SPEC = specification(QUADRATIC, rounds=3, seeds=[0, 1])


@pytest.fixture
def folder(tmp_path: Path) -> ExperimentFolder:
    return ExperimentFolder.open(tmp_path / "out", SPEC, {})


def test_another_specification_is_refused_with_each_difference(folder: ExperimentFolder) -> None:
    same = ExperimentFolder.open(folder.path, SPEC, {})
    assert same.experiment == folder.experiment
    other = SPEC.model_copy(update={"rounds": 4, "seeds": (0,)})
    with pytest.raises(FolderError, match=r"rounds is 3 there, and 4 here; seeds is \[0, 1\] there"):
        ExperimentFolder.open(folder.path, other, {})


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(FolderError, match=r"not empty: it contains thesis\.tex"):
        ExperimentFolder.open(tmp_path, SPEC, {})
    with pytest.raises(FolderError, match="is not a folder of `fedq run`"):
        archive(tmp_path)


TWICE = b'{"round": 1,\n "round": 2}'
"""As it stands in the middle of a document."""


def test_a_key_that_stands_twice_is_told_with_its_place(folder: ExperimentFolder) -> None:
    run = folder.path / "runs" / "0-0"
    run.mkdir(parents=True)
    (run / RUN).write_bytes(b'{"run": ' + TWICE + b"}")
    with pytest.raises(
        FolderError, match=r"run.json is not readable: the key 'round' stands twice: line 2 column 2"
    ):
        folder.run(RunKey(0, 0)).read()
    (run / ROUNDS).write_bytes(b'{"round": 2, "round": 3}\n')
    with pytest.raises(
        FolderError,
        match=r"rounds.jsonl, line 1, is not readable: the key 'round' stands twice: .* column 14",
    ):
        folder.run(RunKey(0, 0)).rows()
    (folder.path / "experiment.json").write_bytes(TWICE)
    with pytest.raises(FolderError, match=r"experiment.json is not readable: the key 'round' stands twice"):
        ExperimentFolder(folder.path)


def test_run_is_computed_by_one_process_at_a_time(folder: ExperimentFolder) -> None:
    def in_another_process(places: list[int]) -> int:
        child = os.fork()
        if not child:
            try:
                with folder.locked(places):
                    os._exit(0)
            except FolderError:
                os._exit(1)
            finally:
                os._exit(2)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    with folder.locked([1]):
        assert in_another_process([0]) == 0
        assert in_another_process([0, 1]) == 1
    assert in_another_process([0, 1]) == 0


def test_rounds_behind_the_checkpoint_and_half_written_ones_are_dropped(folder: ExperimentFolder) -> None:
    files, simulation = folder.run(RunKey(0, 1)), Simulation(SPEC, 1)
    files.write(files.start({}))
    files.commit([simulation.advance()], state := simulation.checkpoint())
    with (folder.path / "runs" / "0-1" / ROUNDS).open("ab") as file:
        late = simulation.advance().row() | {"committed_at": "2026-01-01T00:00:00+00:00"}
        file.write(json.dumps(late).encode() + b"\n" + b'{"round": 3, "tr')
    assert [row["round"] for row in files.rows()] == [1, 2]
    assert files.checkpoint() == state
    files.keep_rows(1)
    assert [report.round for report in files.reports()] == [1]
    with pytest.raises(FolderError, match="has 1 of the 2 rounds of its checkpoint"):
        files.keep_rows(2)


def test_a_run_that_was_killed_after_its_last_round_has_not_ended(folder: ExperimentFolder) -> None:
    files, local = folder.run(RunKey(0, 1)), LocalExperiment(folder)
    run = files.start({})
    assert not local._reached(run, 3, 3), "its models are not stored"
    assert not local._reached(run, 2, 3)
    assert local._reached(run, 3, 2), "it has gone farther"
    assert local._reached(run.model_copy(update={"status": Status.SUCCEEDED}), 3, 3)


@pytest.mark.parametrize("best", [True, False])
def test_a_model_that_was_cut_is_not_given_out(folder: ExperimentFolder, best: bool) -> None:
    files = folder.run(folder.run_keys()[0])
    models = {MODEL: {"w": torch.zeros(9)}, BEST_MODEL: {"w": torch.ones(9)}}
    final, other = (sha256(save(model)).hexdigest() for model in models.values())
    run = files.start({"model_sha256": final, "best_model": {"sha256": other}})
    name = BEST_MODEL if best else MODEL
    contents = {name: save(model, {"format": "pt"}) for name, model in models.items()}
    files.finish(run, contents)
    assert files.model(best=best) == contents[name]
    for place in contents:
        files.finish(run, contents | {place: contents[place][:-1]})
        if place == name:
            with pytest.raises(FolderError, match=f"damaged model: {name}"):
                files.model(best=best)
        else:
            assert files.model(best=best) == contents[name]


def test_a_line_that_is_no_round_is_named(folder: ExperimentFolder) -> None:
    for key in folder.run_keys():
        files, simulation = folder.run(key), Simulation(SPEC, key.seed)
        run = files.start({})
        files.write(run)
        files.commit([simulation.advance() for _ in range(3)], b"state")
        files.finish(run.model_copy(update={"status": Status.SUCCEEDED, "finished_at": run.started_at}))
    archive(folder.path)
    file = folder.path / "runs" / "0-1" / ROUNDS
    first, second, third = file.read_bytes().splitlines(keepends=True)
    for lines, told in (
        ([first, third, second], "line 2, is not readable: it is round 3, not 2"),
        ([first, second, second], "line 3, is not readable: it is round 2, not 3"),
        ([second, third], "line 1, is not readable: it is round 2, not 1"),
        ([first, second[:40] + b"\n", third], "line 2, is not readable: "),
        ([first, second[:40], third], "line 2, is not readable: "),
        ([first, second, third[:40]], "line 3, is not readable: "),
        ([first, second, third.replace(b"round", b"rond")], "line 3, is not readable: round: Field required"),
        ([first, second, third.replace(b'"seconds":', b'"seconds":"x')], "line 3, is not readable"),
        ([first, second, b'{"round": 3}\n'], "line 3, is not readable: train_loss: Field required"),
        ([first, second, b"\xff\n"], "line 3, is not readable: "),
    ):
        file.write_bytes(b"".join(lines))
        for read in (archive, lambda path: results(ExperimentFolder(path))):
            with pytest.raises(FolderError) as refused:
                read(folder.path)
            assert f"{file}, {told}" in str(refused.value)
            assert "\n" not in str(refused.value)


def test_unfinished_runs_are_in_the_table_and_not_exported(folder: ExperimentFolder) -> None:
    files = folder.run(RunKey(0, 1))
    files.write(files.start({}))
    files.commit([RoundReport(0, 1, 1, 1, 8, 8, 0.5, extra={"suboptimality": float("inf")})], b"state")
    with pytest.raises(FolderError, match=r"2 of 2 runs in .* have not ended \(ARM-SEED: 0-0, 0-1\)"):
        archive(folder.path)
    found = results(folder)
    (arm,) = found.arms
    assert (found.status, arm.rounds_done, arm.seeds) == ("running", 1, [1])
    assert arm.runs == {"queued": 1, "running": 1}
    assert arm.seconds is not None
    assert arm.seconds.mean == 0.5


@pytest.mark.parametrize(("of", "runs"), [(1, 5), (3, 7), (8, 3)])
def test_the_parts_share_out_all_runs(of: int, runs: int) -> None:
    parts = [ArrayPart.parse(f"{number}/{of}").places(runs) for number in range(1, of + 1)]
    assert sorted(place for part in parts for place in part) == list(range(runs))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("text", ["0/3", "4/3", "3", "1/0", "-1/2", "1/2/3", "a/b"])
def test_a_part_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="K/N with K from 1 to N"):
        ArrayPart.parse(text)
