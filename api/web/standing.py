"""Where an experiment stands, as its page shows it and asks for anew: a part of the page that is sent only when it has changed."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from api.answers.experiments import summary_answer
from fedcore.platform.status import ENDED, Status
from fedcore.platform.store import Session, experiments, lifecycle, progress
from fedq.schemas import ExperimentSummary

UNDER_WAY = (Status.RUNNING, Status.QUEUED, Status.AT_RUNG)


@dataclass(frozen=True, slots=True)
class Standing:
    """An experiment at one moment."""

    experiment: ExperimentSummary
    imported: bool
    """Whether it was carried out elsewhere, and never goes on here."""
    searched: bool
    """Whether a search decides how far its arms get."""

    @property
    def live(self) -> bool:
        """Whether something may still happen by itself."""
        return self.experiment.status not in ENDED and self.experiment.status is not Status.PAUSED

    @property
    def actions(self) -> list[str]:
        """What makes sense now, of what `/v1/experiments/{id}/...` offers."""
        return [] if self.imported else actions(self.experiment.progress.runs, searched=self.searched)

    @property
    def digest(self) -> str:
        """The same while nothing has changed."""
        return sha256(self.experiment.model_dump_json().encode()).hexdigest()[:16]


def read(session: Session, experiment_id: str, owner: str | None) -> Standing:
    """Where an experiment stands, if it is `owner`'s where one is given; raises NotFoundError."""
    record = experiments.find(session, experiment_id, owner)
    summary = summary_answer(record, progress.progress(session, experiment_id))
    return Standing(summary, lifecycle.IMPORTED in record.provenance, record.spec.get("search") is not None)


def actions(runs: Mapping[Status, int], *, searched: bool = False) -> list[str]:
    """What can be done to an experiment with so many runs of each status."""
    offered = {
        "pause": any(runs.get(status) for status in UNDER_WAY),
        "resume": bool(runs.get(Status.PAUSED)),
        "cancel": any(runs.get(status) for status in (*UNDER_WAY, Status.PAUSED)),
        "retry": any(runs.get(status) for status in (Status.FAILED, Status.CANCELLED)),
        "extend": not searched and any(runs.get(status) for status in (*UNDER_WAY, Status.PAUSED, Status.SUCCEEDED)),
    }
    return [name for name, makes_sense in offered.items() if makes_sense]
