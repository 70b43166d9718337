"""What is measured of a model beside its loss."""
