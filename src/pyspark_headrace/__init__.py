"""Where Spark looks for the format ``headrace``: it imports every installed package named ``pyspark_…``."""

from headrace.spark.source import HeadraceSource as DefaultSource

__all__ = ["DefaultSource"]
