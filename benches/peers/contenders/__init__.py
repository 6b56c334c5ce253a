"""The contenders: one file per peer, or per way of using one; see protocol.py."""
