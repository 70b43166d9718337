"""Identifiers sort by age, and are told apart."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import example, given
from hypothesis.strategies import datetimes, timedeltas, timezones

from fedcore.platform.store.records import make_ids, make_least_id

moments = datetimes(datetime(1970, 1, 1), datetime(9000, 1, 1), timezones=timezones())  # noqa: DTZ001 - hypothesis adds the zone


def test_an_identifier_is_a_word_of_its_kind() -> None:
    (made,) = make_ids("exp", datetime(2026, 1, 1, tzinfo=UTC), 1)
    kind, _, rest = made.partition("_")
    assert (kind, len(rest)) == ("exp", 26)
    assert set(rest) <= set("0123456789abcdefghjkmnpqrstvwxyz")


def test_identifiers_made_together_keep_their_order_and_differ_from_all_others() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    made = make_ids("run", moment, 10_000)
    assert made == sorted(set(made))
    assert set(made).isdisjoint(make_ids("run", moment, 10_000))


@example(datetime(2026, 1, 1, microsecond=1_500, tzinfo=UTC), timedelta(milliseconds=1))
@given(moments, timedeltas(timedelta(milliseconds=1), timedelta(days=365)))
def test_identifiers_sort_by_age(moment: datetime, later: timedelta) -> None:
    older, newer = make_ids("run", moment, 100), make_ids("run", moment + later, 100)
    for one, next_one in pairwise(
        [make_least_id("run", moment), *older, make_least_id("run", moment + later), *newer]
    ):
        assert one < next_one


@given(datetimes(max_value=datetime(1970, 1, 1)), moments)  # noqa: DTZ001 - hypothesis adds no zone here
def test_no_identifier_is_below_the_floor_of_a_moment_before_1970(early: datetime, moment: datetime) -> None:
    assert make_least_id("run", early.replace(tzinfo=UTC)) <= make_ids("run", moment, 1)[0]
    assert make_least_id("run", early.replace(tzinfo=UTC)) <= make_least_id("run", moment)
