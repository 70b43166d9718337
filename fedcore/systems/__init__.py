"""Systems heterogeneity: who takes part, and how much each client does."""
