"""Results for the tests of goals and reports."""

from __future__ import annotations

from pathlib import Path

from harness import goals, plan, stored

BUILD = {
    "commit": "0123456789abcdef",
    "dirty": False,
    "profile": "release",
    "profile_settings": 'lto = "thin"',
    "sources": "aaaaaaaabbbb",
    "programs": "cccc",
    "s3_server": "dddd",
    "cpu": "x",
    "kernel": "6",
}

AGREES = {"agrees": True, "difference": 0.1, "limit": 1.5, "worst": 3.0, "worst_name": "7", "note": ""}

FASTEST = "pictures-train, local, {}: rate over the fastest peer's"

RATES = {
    "feedstock": [1500.0, 1700.0, 1600.0, 1600.0, 1550.0],
    "feedstock_torch": [1400.0, 1500.0, 1600.0, 1500.0, 1500.0],
    "torch_pil": [400.0] * 5,
    "dali": [800.0, 1000.0, 900.0, 900.0, 900.0],
}


def results(tmp_path: Path) -> stored.Results:
    """Five rounds of pictures-train with two peers, one of each kind. FFCV is not installed; others did not run."""
    made = stored.Results(tmp_path / "results.json")
    made.built(BUILD)
    made.content["machine"] = {
        "cores": 2, "cpu": "x", "memory_bytes": 2**30, "kernel": "6", "python": "3.11", "date": "2026-01-01"
    }  # fmt: skip
    made.content["settings"] = {
        "warm_up_batches": 28,
        "measured_batches": 56,
        "least_s": 3.5,
        "order_seed": 7,
    }
    made.content["ceilings"] = {"libjpeg-turbo, full decode": 900.0}
    for peer in (*RATES, "ffcv"):
        error = "error: no compiler" if peer == "ffcv" else None
        made.content["peers"][peer] = {**plan.facts(peer), "error": error, "versions": {}}
    for peer, rates in RATES.items():
        made.content["agreement"][peer] = {"pictures-train": dict(AGREES)}
        made.content["calibration"][peer] = {"pictures-train local": {"workers": 2, "rates": {"2": 800.0}}}
        for number, rate in enumerate(rates):
            key = stored.Key("pictures-train", "local", "steady", peer, number + 1)
            beside = {"load_before": 0.5, "others_cores": 0.25, "steal_share": 0.02}
            figures = {"rate": rate, "cpu_s_per_1000": 2000 / rate, "first_batch_s": 1.0, "peak_bytes": 2**20}
            made.add(key, figures | beside)
    return made


def judged(made: stored.Results) -> dict[str, goals.Goal]:
    return {goal.what: goal for goal in goals.goals(made)}
