"""Preload for processes forked by `tests.support.forks`: libraries, and the machine code that most
runs need.
"""

import gc

import celery.apps.worker
import celery.bin.celery
import celery.concurrency.prefork
import celery.worker.components
import kombu.transport.redis
import numpy as np

import workers.reconciler
import workers.runner
import workers.worker
from fedcore.data.plan import cohort_batches
from fedcore.systems.work import Work

LOADED = (workers.reconciler, workers.runner, workers.worker)
SERVED = (
    celery.apps.worker,
    celery.bin.celery,
    celery.concurrency.prefork,
    celery.worker.components,
    kombu.transport.redis,
)
"""Modules that Celery loads when a worker starts."""

_many = np.full(30, 300)
cohort_batches(0, 1, np.arange(len(_many)), _many, [Work(30, 10)] * len(_many))

# Celery collects garbage as it starts a child: what is loaded here is none.
gc.collect()
gc.freeze()
