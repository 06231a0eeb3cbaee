"""SQL text → statement → bound, typed plan.

``lexer.py`` cuts a text into tokens, ``grammar.py`` and what it stands on (``expression_grammar.py``,
``call_grammar.py``, ``type_names.py``, ``token_reader.py``) read them by Spark's own rules into trees of sqlglot's
classes, each node with its stretch of the text (``source.py``). ``statements.py`` reads the words around queries,
``expressions.py`` types scalar expressions as Spark's analyzer would, ``binder.py`` builds plans.
"""
