"""The addresses of the documentation that settings come from."""

from __future__ import annotations

# Names as in guidance. Pages move, so each is the start of a project's documentation, as of November 2026.
DOCUMENTATION = {
    "DALI documentation": "https://docs.nvidia.com/deeplearning/dali/user-guide/docs/",
    "Daft documentation": "https://docs.daft.ai/",
    "FFCV documentation": "https://docs.ffcv.io/",
    "Grain documentation": "https://google-grain.readthedocs.io/",
    "Lhotse documentation": "https://lhotse.readthedocs.io/",
    "LitData's README": "https://github.com/Lightning-AI/litData",
    "Ray documentation": "https://docs.ray.io/en/latest/data/data.html",
    "SPDL documentation": "https://facebookresearch.github.io/spdl/",
    "Streaming documentation": "https://docs.mosaicml.com/projects/streaming/",
    "WebDataset documentation": "https://webdataset.github.io/webdataset/",
    "datasets documentation": "https://huggingface.co/docs/datasets/",
    "tf.data API": "https://www.tensorflow.org/guide/data_performance",
    "torch.utils.data documentation": "https://docs.pytorch.org/docs/stable/data.html",
    "torchdata documentation": "https://docs.pytorch.org/data/",
    "torchvision documentation": "https://docs.pytorch.org/vision/stable/",
}


def linked(line: str) -> str:
    """Returns ``line`` with links to the documentation that it names, in Markdown."""
    for name, address in DOCUMENTATION.items():
        line = line.replace(name, f"[{name}]({address})")
    return line
