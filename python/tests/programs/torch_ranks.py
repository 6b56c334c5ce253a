"""Starts the ranks of a test: one process each, joined by gloo.

Processes are forked from a server that has imported torch once (3 s of CPU each otherwise). The server must not have
used feedstock, whose threads do not survive a fork; importing torch starts none.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any

# What training imports, directly or on first use; torch._dynamo and its train come with fully_shard.
TORCH_MODULES = (
    "torch",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint.state_dict",
)

# A rank takes seconds; this is enough for a busy machine. Only failing tests wait this long.
PATIENCE_S = 900.0


def server(modules: Sequence[str] = TORCH_MODULES) -> Any:
    """Returns the multiprocessing context whose processes have already imported `modules`. The server imports only the
    modules of the first call; processes import further ones of later calls themselves."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(modules))
    return context


def launch(
    program: Callable[..., None],
    world_size: int,
    folder: Path,
    *args: Any,
    modules: Sequence[str] = TORCH_MODULES,
) -> list[int]:
    """Runs `program(*args)` in `world_size` ranks and returns their exit codes by rank: 0, 1 for an exception, −9.

    As under torchrun, a failed rank ends the others: a lost peer makes their next collective fail, or they are killed.
    `folder` is for the rendezvous and for the ranks' output.
    """
    context = server(modules)
    folder.mkdir(parents=True, exist_ok=True)
    attempt = sum(1 for _ in folder.glob("rendezvous-*"))
    rendezvous = folder / f"rendezvous-{attempt}"
    rendezvous.touch()
    processes = [
        context.Process(target=_rank, args=(program, rank, world_size, str(rendezvous), args), daemon=True)
        for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    try:
        _wait(processes)
    finally:
        for process in processes:
            process.kill()
            process.join()
    codes = [process.exitcode for process in processes]
    return [code for code in codes if code is not None]


def printed(folder: Path) -> str:
    """Returns the output of all ranks of all launches in this folder, for a failing test's message."""
    return "\n".join(
        f"--- {path.name}\n{path.read_text()}" for path in sorted(folder.glob("rendezvous-*.out"))
    )


def _wait(processes: Sequence[Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    running = {process.sentinel: process for process in processes}
    while running:
        for sentinel in connection.wait(list(running), timeout=max(0.0, deadline - time.monotonic())):
            process = running.pop(sentinel)
            process.join()
            if process.exitcode != 0:
                deadline = min(
                    deadline, time.monotonic() + 20.0
                )  # the others detect the failure by then, or are killed
        if running and time.monotonic() >= deadline:
            return


def _rank(
    program: Callable[..., None], rank: int, world_size: int, rendezvous: str, args: Sequence[Any]
) -> None:
    output = os.open(f"{rendezvous}-{rank}.out", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size), GLOO_SOCKET_IFNAME="lo"
    )
    try:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size)
        program(*args)
        # Gloo frees the last collective's tensors on a separate thread, which waits for the interpreter's lock.
        # Destroying the group waits for that thread and holds the lock. While a barrier waits, the lock is free.
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # a failed rank does not wait for others
