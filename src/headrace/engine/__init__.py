"""Engines: one fragment, three places to run it.

A fragment is a plan without a break. ``plan_sql.py`` prints it as SQL for DuckDB
or for Spark (``native_*`` and ``spark_sql.py`` print its expressions); ``places.py``
says where it runs; ``worker.py`` runs it natively, in this process or, through
``tasks.py``, inside Spark tasks; ``spark.py`` runs it as Spark SQL. All three leave
identical rows.
"""
