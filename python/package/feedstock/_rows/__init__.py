"""Runs the user's functions on single rows: ``Pipeline.map_rows``.

    native batch ──▶ Rows ──▶ stage of step 0 ──▶ stage of step 1 ──▶ … ──▶ dict of arrays or tensors
                                │ ▲
                     inputs ────┘ └──── results         shared memory, or memory of this process
                                processes or threads    one call of the function for each row

Invariants: the result of a row is a pure function of its sample, the seed, the epoch and the number of the step. A row
under way is in one process at a time, and no process writes to memory that the caller has. Batches leave in order.

Cost: one copy of what a function gets, one that the function may change, and one of its result.
"""
