"""What processes forked by `tests.support.forks` need not load: libraries, and the machine code that most runs need."""

import numpy as np

import workers.reconciler
import workers.run
import workers.worker
from fedcore.data.plan import Work, cohort_batches

LOADED = (workers.reconciler, workers.run, workers.worker)

_many = np.full(30, 300)
cohort_batches(0, 1, np.arange(len(_many)), _many, [Work(30, 10)] * len(_many))
