"""Headrace keeps SQL views over streams and changing tables fresh, on Spark, from Python."""
