"""What carries runs out: the Celery worker, the reconciler, and the supervisor of a stack on one
machine.
"""
