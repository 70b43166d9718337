"""The HTTP API and the web pages of FedQ."""
