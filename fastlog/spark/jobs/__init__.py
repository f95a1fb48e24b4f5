"""Jobs for Spark, each a program: ``python -m fastlog.spark.jobs.load``, or the same file for ``spark-submit``."""
