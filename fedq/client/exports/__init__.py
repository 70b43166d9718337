"""Exports of experiments to other tools: tables in files, TensorBoard event files, MLflow's
tracking store.

Exporting again updates an existing export and duplicates nothing.
"""

from fedq.client.exports import archive
from fedq.client.exports.sinks import Form, Sink, open_sink

__all__ = ["Form", "Sink", "archive", "open_sink"]
