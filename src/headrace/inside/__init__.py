"""Looking inside: what a database knows about itself, as relations of the schema ``headrace``.

Each is a listing: columns, and a class whose objects are its lines (``listing.py``). A kind of relation brings its
own along (``view/listing.py``, ``sample/listing.py``) or has the common one. SHOW prints some columns of the same
listing that ``headrace.views`` reads in a query.
"""
