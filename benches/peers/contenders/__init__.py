"""The contenders: one file a peer, or a way of using one; see protocol.py."""
