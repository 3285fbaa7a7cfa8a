"""The consistent cuts of a trace, and predicates on them.

There can be as many as the product of the lengths of all lines: 10 processes of 100 events that
exchange no message have 10^20. So a function that visits single cuts is an iterator, or takes a
maximum.
"""

from stillframe.cuts.lattice import consistent_cuts, count_consistent_cuts, explain, interior
from stillframe.cuts.predicates import (
    CutView,
    Predicate,
    cuts_where,
    definitely,
    observation_without,
    possibly,
)

__all__ = [
    "CutView",
    "Predicate",
    "consistent_cuts",
    "count_consistent_cuts",
    "cuts_where",
    "definitely",
    "explain",
    "interior",
    "observation_without",
    "possibly",
]
