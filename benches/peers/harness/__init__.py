"""The harness of benches/peers: see ``run --help``."""
