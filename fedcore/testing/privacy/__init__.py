"""Audits of differential privacy."""
