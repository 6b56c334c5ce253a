"""The list of peers. It is a separate file, because a new peer changes no figures of others."""

from __future__ import annotations

# The order of the report: ours, then theirs.
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
