"""Flower's clients, in Ray's workers; a module of its own, which those import by name."""

import os
from functools import cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from torch import nn

from bench.peers import loop, modules
from bench.peers.common import Task


@cache
def _loaded(folder: str) -> tuple[Task, nn.Module]:
    """Load the task and a module, once per worker."""
    torch.set_num_threads(1)
    task = Task(Path(folder))
    return task, modules.build(task)


def train(message: Message, context: Context) -> Message:
    """A client's local training in a plain PyTorch loop."""
    task, module = _loaded(os.environ["BENCH_FOLDER"])
    config = message.content["config"]
    assigned = task.cohort(config["round"])[config["place"]]
    modules.load_trained(module, message.content["arrays"].to_torch_state_dict())
    loop.train(module, task, assigned)
    examples = len(task.data(assigned.client)[1])
    content = RecordDict(
        {"arrays": ArrayRecord(modules.trained(module)), "metrics": MetricRecord({"num-examples": examples})}
    )
    return Message(content=content, reply_to=message)
