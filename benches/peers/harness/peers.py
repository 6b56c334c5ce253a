"""Who takes part. A new peer changes nothing of what was measured of others, so that this stands by itself."""

from __future__ import annotations

# Order of the report: ours, then theirs.
PEERS = (
    "feedstock",
    "feedstock_torch",
    "feedstock_files",
    "feedstock_defaults",
    "torch_pil",
    "torch_io",
    "torch_soundfile",
    "torch_soxr",
    "torch_torchcodec",
    "ray_data",
    "mosaicml_streaming",
    "litdata",
    "webdataset",
    "hf_datasets",
    "dali",
    "ffcv",
    "ffcv_raw",
    "spdl",
    "spdl_torch",
    "tf_data",
    "grain",
    "daft",
    "lhotse",
)
