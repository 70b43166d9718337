"""How a test gets what it needs without paying for it again.

- **Specifications, experiments and claims** come from `tests/builders`, whose modules are named
  after what they build.
- **A database** is a copy of one that was migrated once: ask for `database` (of each kind),
  `sqlite_url` or `postgresql_url` (`tests/conftest.py`). Only tests of migrations migrate.
- **Requests** need no process: `http` (`tests/api/conftest.py`) calls the application here.
  `service` is one running API that all tests of a process share; it is emptied after each.
- **Rounds** need none either: `Deployment.runner()` (`tests/workers/deployment.py`) is a worker's
  runner in this process, which stops where the test says. Much that can go wrong is shown with it,
  at a hundredth of the cost of processes.
- **Workers and reconcilers** are forked from a process that has loaded their libraries once
  (`tests/support/forks.py`): `Deployment.running()` costs some tenths of a second. Its workers play
  the first rounds at full speed and then dawdle at no cost (`tests/workers/throttled_worker.py`),
  so a run is in the middle for long: `Deployment.in_the_middle()` waits until it is there,
  `Deployment.ended()` lets the workers go and waits for the end.
- **A stack** as `fedq up` starts it takes some seven seconds of a core. Only what is about its
  start and its end needs one.

Waiting is by `tests.support.polling.eventually`, for a condition and with a limit that only a
failure reaches: no test says how quickly something happens, and none sleeps.
"""
