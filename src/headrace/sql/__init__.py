"""SQL text → statement → bound, typed plan.

``statements.py`` parses (sqlglot is lexer and parser only), ``expressions.py``
types scalar expressions as Spark's analyzer would, ``binder.py`` builds plans.
"""
