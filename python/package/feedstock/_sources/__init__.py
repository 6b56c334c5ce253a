"""Data sets of what is not stored as files: tables, lists, and data sets of other libraries.

    from_items ─▶ from_pandas ─▶ from_arrow ──▶ an Arrow IPC file in the cache, named by a digest ─┐
    from_huggingface ──▶ links to its Arrow files, or from_arrow ──────────────────────────────────┼─▶ Dataset
    from_torch ──▶ indexes://N, which is computed; processes make the items (`_rows/items`) ───────┘

Invariant: equal contents have equal file names and bytes, so identities and saved positions are the same on every
machine.
"""
