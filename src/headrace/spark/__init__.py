"""Headrace and Structured Streaming: rows from Spark in, views to Spark out, each once (docs/spark.md)."""
