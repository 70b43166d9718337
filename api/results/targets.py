"""Targets as requests name them."""

import re
from math import isfinite

from api.http.problems import InvalidDocumentError
from fedcore.measures import explain_list
from fedcore.spec.validation import not_among
from fedcore.statistics import summary
from fedq.results.presentation import is_share
from fedq.results.summaries import metric_names
from fedq.schemas import Target

_TARGET = re.compile(r"([\w/]+):([-+]?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)", re.ASCII)


def target_of(text: str) -> Target:
    """Parse a target such as `test_accuracy:0.9`; raises InvalidDocumentError."""
    found = _TARGET.fullmatch(text)
    if found is None or not isfinite(float(found[2])):
        raise InvalidDocumentError.at(
            "?target", f"must be METRIC:VALUE, e.g. test_accuracy:0.9, not {text!r}"
        )
    if reason := explain_list(found[1]):
        raise InvalidDocumentError.at("?target", reason)
    if summary.better_of(found[1]) is None:
        metrics = list(filter(summary.better_of, metric_names()))
        raise InvalidDocumentError.at("?target", f"the metric {not_among(found[1], metrics)}")
    value = float(found[2])
    if is_share(found[1]) and not 0 <= value <= 1:
        raise InvalidDocumentError.at(
            "?target", f"{found[1]} is a share between 0 and 1: for {value:g} %, give {value / 100:g}"
        )
    return Target(metric=found[1], value=value)
