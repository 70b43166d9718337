"""Users' own data sets: read from NPZ or Parquet, checked, and kept in one form; no tensor
library.
"""
