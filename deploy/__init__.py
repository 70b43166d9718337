"""Container images, manifests and the documentation site."""
