"""What containers are made from."""
