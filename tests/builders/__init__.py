"""Builders that tests share: specifications, experiments, claims, runs and webhooks."""
