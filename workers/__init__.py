"""Processes that execute runs: the Celery worker, the reconciler, and the supervisor of a stack on
one machine.
"""
