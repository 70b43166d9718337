"""What came out of an experiment, for other tools: tables in files, TensorBoard's event files,
MLflow's tracking store.

Exporting again brings up to date what was written before, and doubles nothing.
"""

from fedq.client.exports import archive
from fedq.client.exports.sinks import Form, Sink, open_sink

__all__ = ["Form", "Sink", "archive", "open_sink"]
