"""A cache that many requests share."""

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event

from api.experiments.list_pages import MAX_KEPT, TtlCache


def test_those_who_ask_at_once_share_one_value() -> None:
    shared, made, begun = TtlCache[int](60.0), list[int](), Event()

    def make() -> int:
        made.append(1)
        begun.wait(60)
        return len(made)

    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(shared.get, "key", make) for _ in range(8)]
        begun.set()
        assert [one.result() for one in asked] == [1] * 8
    assert shared.get("other", make) == 2


def test_a_value_is_made_anew_after_its_time_and_one_that_fails_is_not_kept() -> None:
    shared, values = TtlCache[int](0.0), iter([0, 1, 2])
    assert shared.get("key", lambda: next(values)) == 0
    time.sleep(0.001)
    assert shared.get("key", lambda: next(values)) == 1
    lasting = TtlCache[float](60.0)
    for _ in range(2):
        try:
            lasting.get("key", lambda: 1 / 0)
        except ZeroDivisionError:
            continue
    assert lasting.get("key", lambda: 3.0) == 3.0


def test_keys_without_end_take_no_memory_without_end() -> None:
    shared = TtlCache[int](60.0)
    for key in range(3 * MAX_KEPT):
        shared.get(key, lambda: 0)
    assert len(shared._made) <= MAX_KEPT
