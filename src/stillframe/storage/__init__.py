"""Storage for everything that must last: local files, or objects in a bucket.

``location`` names a place, ``storage`` is the interface of both kinds, ``local_files`` and
``object_store`` implement it, and ``opened`` selects one. ``files`` treats a directory and a
prefix alike, ``lease`` keeps a second writer out, and ``reading`` reads files that detect
changes.
"""
