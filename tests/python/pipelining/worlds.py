"""Process groups to run pipelines in: one rank in this process, or several forked ranks over Gloo."""

import contextlib
import multiprocessing
import os
import tempfile
import traceback

import torch
import torch.distributed as dist


@contextlib.contextmanager
def one_rank():
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _rank_main(work, rank, ranks, path, results, args):
    try:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", store=dist.FileStore(path, ranks), rank=rank, world_size=ranks)
        results.put((rank, None, work(rank, ranks, *args)))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        results.put((rank, traceback.format_exc(), None))
        results.close()
        results.join_thread()
        os._exit(1)


def gloo_ranks(ranks, work, *args, seconds=300):
    """Runs work(rank, ranks, *args) in forked processes. Returns what each rank returned, which must be picklable."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        results = context.Queue()
        path = os.path.join(folder, "store")
        processes = [
            context.Process(target=_rank_main, args=(work, rank, ranks, path, results, args), daemon=True)
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        found = {}
        try:
            for _ in range(ranks):
                rank, failure, value = results.get(timeout=seconds)
                if failure is not None:
                    raise AssertionError(f"rank {rank} failed:\n{failure}")
                found[rank] = value
            for process in processes:
                process.join(seconds)
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
    return [found[rank] for rank in range(ranks)]
