"""Speed: measured here, never in tests."""
