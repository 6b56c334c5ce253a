//! SQL filters over the catalog. (Door; to be filled.)
