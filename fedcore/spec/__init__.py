"""The specification of an experiment: the one document that HTTP, command line and Python share."""

from fedcore.spec.experiment import Arm, ExperimentSpec, stored_arms, stored_spec

__all__ = ["Arm", "ExperimentSpec", "stored_arms", "stored_spec"]
