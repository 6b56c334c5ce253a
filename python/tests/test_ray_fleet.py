"""The fleet on a real cluster, with workers that serve nothing: their number, nodes and lifetimes."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import feedstock as fs

pytest.importorskip("torch")
pytest.importorskip("ray")

import ray
from programs.ray_cluster import PATIENCE_S, RayCluster

from feedstock.ray import WORKER_RESOURCE, Fleet, Scaling, find
from feedstock.ray.fleet.renewal import Renewal
from feedstock.ray.fleet.sources import allowed, settings, sources
from feedstock.ray.fleet.spec import Identity, Native, Timing

TOKEN = "a-token-that-nobody-may-see"

#: The defaults with shorter times. The limit for silence allows for an overloaded machine.
QUICK = Timing(tick=0.1, beat=0.3, worker=60.0, renew=0.3, rank=3.0, adopt=60.0, place=60.0, backoff=0.3)
QUICK_SCALING = Scaling(out_seconds=1.0, in_seconds=2.0, in_seconds_most=8.0)


class FakeWorker:
    """Has the API of the native worker."""

    def __init__(self, **options: Any) -> None:
        assert options["token"] == TOKEN
        assert options["tls"] == ("server certificate", "server key")
        host = options["listen"].rpartition(":")[0]
        self.address = f"{host}:{os.getpid()}"
        self.draining = False
        self.samples = 0

    def status(self) -> str:
        self.samples += 10
        return json.dumps({"streams": 2, "samples": self.samples, "draining": self.draining})

    def drain(self, timeout: float) -> bool:
        self.draining = True
        time.sleep(0.2)
        return True

    def stop(self) -> None:
        pass


class FakeMembers:
    """Has the API of the native list of workers."""

    def __init__(self, workers: list[str], **options: Any) -> None:
        assert (options["token"], options["client"]) == (TOKEN, ("client certificate", "client key"))
        assert options["server_name"] == "feedstock-fleet"
        self.now = workers

    def set(self, addresses: list[str]) -> None:
        self.now = addresses

    def addresses(self) -> list[str]:
        return self.now


class FakeNative(Native):
    def identity(self) -> dict[str, str]:
        names = ("server_cert", "server_key", "client_cert", "client_key")
        made = {name: name.replace("_", " ").replace("cert", "certificate") for name in names}
        return {"ca": "authority", "token": TOKEN, **made}

    def worker(self, **options: Any) -> Any:
        return FakeWorker(**options)

    def members(self, **options: Any) -> Any:
        return FakeMembers(**options)


class Refusing(FakeNative):
    def worker(self, **options: Any) -> Any:
        raise fs.ConfigError("memory_bytes=1 is too little for one batch")


class FakeLoader:
    """A loader whose ranks wait for the fraction ``share`` of their time."""

    def __init__(self, share: float) -> None:
        self.share, self.waited, self.samples, self.at = share, 0.0, 0, time.monotonic()

    def stats(self) -> dict[str, Any]:
        now = time.monotonic()
        self.waited += self.share * (now - self.at)
        self.at = now
        self.samples += 1
        return {"waited_seconds": self.waited, "samples": self.samples}


ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    cluster = RayCluster()
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def nodes(cluster: RayCluster) -> Iterator[dict[str, Any]]:
    """Returns two nodes with room for two workers each. The head has room for none."""
    added = [cluster.add_node(**{WORKER_RESOURCE: 2}) for _ in range(2)]
    yield {node.node_id: node for node in added}
    for node in added:
        cluster.remove_node(node)


@pytest.fixture(scope="module")
def pipeline(imagenet: Path) -> fs.Pipeline:
    return fs.Dataset(imagenet, columns=["label"]).shuffle(seed=3, window=64).batch(16)


@pytest.fixture
def start(cluster: RayCluster, nodes: Any, pipeline: fs.Pipeline) -> Iterator[Callable[..., Fleet]]:
    """Returns a function that starts fleets. They and all their workers end with the test."""
    started: list[Fleet] = []

    def start(*bounds: int, **options: Any) -> Fleet:
        given = {
            "cpus_per_worker": 0.1,
            "resources": {WORKER_RESOURCE: 1},
            "lease_seconds": 600.0,
            "scaling": QUICK_SCALING,
            "_native": FakeNative(),
            "_timing": QUICK,
            **options,
        }
        started.append(Fleet(pipeline, *bounds, **given))
        return started[-1]

    yield start
    for fleet in started:
        fleet.shutdown(0)
    until("no worker", lambda: not workers_by_name())


def until(what: str, condition: Callable[[], Any]) -> Any:
    begin = time.monotonic()
    while not (value := condition()):
        assert time.monotonic() - begin < PATIENCE_S, f"{what}: not within {PATIENCE_S:.0f} s"
        time.sleep(0.1)
    return value


def workers_by_name() -> list[str]:
    """Returns the names of the workers of all jobs."""
    named = ray.util.list_named_actors(all_namespaces=True)
    return [actor["name"] for actor in named if actor["name"].startswith("feedstock:")]


def serving(fleet: Any) -> list[dict[str, Any]]:
    return [worker for worker in fleet.status()["workers"] if worker["phase"] == "serving"]


def places(fleet: Any) -> list[str]:
    return sorted(worker["node"] for worker in serving(fleet))


# Placement and replacement


def test_spread_and_replaced_on_the_other_node(start: Any, nodes: dict[str, Any]) -> None:
    fleet = start(2)
    members = fleet.members()
    fleet.wait(2, timeout=PATIENCE_S)
    assert places(fleet) == sorted(nodes)
    until("their addresses in the list", lambda: members.addresses() == fleet.addresses())
    assert fleet.address == ",".join(fleet.addresses())
    lost, stays = serving(fleet)
    os.kill(lost["pid"], signal.SIGKILL)
    until("a loss", lambda: lost["number"] not in {worker["number"] for worker in serving(fleet)})
    until("a replacement", lambda: len(serving(fleet)) == 2)
    assert places(fleet) == [stays["node"]] * 2, "back on the node where one had just failed"
    until("the new list", lambda: members.addresses() == fleet.addresses())
    assert lost["address"] not in members.addresses()
    assert f"worker {lost['number']}: " in fleet.status()["failure"]


def test_pack(start: Any, nodes: dict[str, Any]) -> None:
    fleet = start(2, placement="PACK")
    fleet.wait(2, timeout=PATIENCE_S)
    assert len(set(places(fleet))) == 1


def test_on_nodes_with_labels_also_after_a_loss(
    start: Any, cluster: RayCluster, nodes: dict[str, Any]
) -> None:
    labelled = [cluster.add_node(labels={"pool": pool}, **{WORKER_RESOURCE: 2}) for pool in ("near", "far")]
    near, far = (node.node_id for node in labelled)
    try:
        fleet = start(2, label_selector={"pool": "near"})
        fleet.wait(2, timeout=PATIENCE_S)
        assert places(fleet) == [near] * 2, "every other node has room for two"
        lost = serving(fleet)[0]
        os.kill(lost["pid"], signal.SIGKILL)
        until("a loss", lambda: lost["number"] not in {worker["number"] for worker in serving(fleet)})
        until("a replacement", lambda: len(serving(fleet)) == 2)
        assert places(fleet) == [near] * 2, "a node that is avoided is better than one without the label"
        fleet.shutdown(0)
        away = start(4, name="away", label_selector={"pool": "!in(near, other)"})
        away.wait(4, timeout=PATIENCE_S)
        assert near not in places(away)
        assert far in places(away)
        away.shutdown(0)
    finally:
        for node in labelled:
            cluster.remove_node(node)


def test_in_the_bundles_of_a_placement_group(start: Any, nodes: dict[str, Any]) -> None:
    """The two bundles are on different nodes, and a worker runs in each."""
    bundles = [{"CPU": 0.2, WORKER_RESOURCE: 1}] * 2
    group = ray.util.placement_group(bundles, strategy="STRICT_SPREAD")
    try:
        ray.get(group.ready(), timeout=PATIENCE_S)
        fleet = start(2, 3, placement_group=group)
        fleet.wait(2, timeout=PATIENCE_S)
        table = ray.util.placement_group_table(group)
        assert places(fleet) == sorted(table["bundles_to_node_id"].values()) == sorted(nodes)
        taken = f"{WORKER_RESOURCE}_group_{group.id.hex()}"
        until("the group's resources taken", lambda: ray.available_resources().get(taken, 0.0) == 0.0)
        fleet.shutdown(0)
    finally:
        ray.util.remove_placement_group(group)


def test_a_stopped_worker_is_replaced_and_leaves_when_it_wakes(start: Any) -> None:
    fleet = start(1, _timing=replace(QUICK, worker=6.0))
    (stopped,) = until("a worker", lambda: serving(fleet))
    os.kill(stopped["pid"], signal.SIGSTOP)
    try:
        until("a replacement", lambda: [w for w in serving(fleet) if w["number"] != stopped["number"]])
        assert fleet.addresses() != [stopped["address"]]
    finally:
        with contextlib.suppress(ProcessLookupError):  # Ray has killed it meanwhile
            os.kill(stopped["pid"], signal.SIGCONT)
    until("its end", lambda: not Path(f"/proc/{stopped['pid']}").exists())


def test_a_lost_node(start: Any, cluster: RayCluster, nodes: dict[str, Any]) -> None:
    spare = cluster.add_node(**{WORKER_RESOURCE: 2, "spare": 2})
    fleet = start(2, placement="PACK", resources={WORKER_RESOURCE: 1, "spare": 1})
    try:
        fleet.wait(2, timeout=PATIENCE_S)
    finally:
        cluster.remove_node(spare)
    until("two requests", lambda: [w["phase"] for w in fleet.status()["workers"]] == ["starting"] * 2)
    waits = fleet.status()
    assert (waits["size"], waits["addresses"]) == (2, [])
    with pytest.raises(fs.RetryableError, match=r"0 of 1 workers .* 2 more were requested from Ray"):
        fleet.wait(timeout=0.5)
    spare = cluster.add_node(**{WORKER_RESOURCE: 2, "spare": 2})  # as an autoscaler would
    try:
        fleet.wait(2, timeout=PATIENCE_S)
        assert places(fleet) == [spare.node_id] * 2
        fleet.shutdown(0)
    finally:
        cluster.remove_node(spare)


def test_a_draining_node_is_left_before_it_is_lost(start: Any, cluster: RayCluster) -> None:
    two = [cluster.add_node(**{WORKER_RESOURCE: 2, "spare": 2}) for _ in range(2)]
    try:
        fleet = start(2, placement="PACK", resources={WORKER_RESOURCE: 1, "spare": 1})
        fleet.wait(2, timeout=PATIENCE_S)
        (node,) = set(places(fleet))
        before = {worker["number"] for worker in serving(fleet)}
        cluster.announce_loss(next(one for one in two if one.node_id == node))
        until("two others", lambda: len({worker["number"] for worker in serving(fleet)} - before) == 2)
        assert node not in places(fleet)
        assert fleet.status()["failure"] is None, "no worker was lost"
        fleet.shutdown(0)
    finally:
        for spare in two:
            cluster.remove_node(spare)


# The number of workers


def test_grows_while_ranks_wait_and_shrinks_when_they_do_not(start: Any, nodes: dict[str, Any]) -> None:
    fleet = start(1, 3)
    fleet.wait(timeout=PATIENCE_S)
    loader: Any = FakeLoader(share=0.5)
    fleet.watch(loader)
    until("three workers", lambda: len(serving(fleet)) == 3)

    def one_rank_waits_for_half_of_its_time() -> bool:
        status = fleet.status()
        return (status["ranks"], status["waited_share"]) == (1, pytest.approx(0.5, abs=0.2))

    until("the rank's share", one_rank_waits_for_half_of_its_time)
    until("a rate", lambda: fleet.status()["samples_per_second"] > 0)
    numbers = {worker["number"] for worker in serving(fleet)}
    loader.share = 0.0
    until("one worker", lambda: len(fleet.status()["workers"]) == 1)
    assert {worker["number"] for worker in serving(fleet)} < numbers, "the remaining ones existed before"
    until("idle nodes", lambda: len(workers_by_name()) == 2)  # one worker and the controller
    del loader
    until("no rank", lambda: fleet.status()["ranks"] == 0)


# Lifetimes


def test_the_controller_restarts_and_finds_its_workers(start: Any) -> None:
    fleet = start(2, 3)
    loader: Any = FakeLoader(share=0.02)
    fleet.watch(loader)
    members = fleet.members()
    fleet.wait(2, timeout=PATIENCE_S)
    before, pid = serving(fleet), fleet.status()["pid"]
    os.kill(pid, signal.SIGKILL)

    def back() -> bool:
        try:
            return len(serving(fleet)) == 2 and fleet.status()["pid"] != pid
        except ray.exceptions.RayError:
            return False

    until("a new controller", back)
    assert {w["pid"] for w in serving(fleet)} == {w["pid"] for w in before}
    until("renewals again", lambda: fleet.status()["ranks"] == 1)
    until("the new list", lambda: members.addresses() == fleet.addresses())


def test_without_a_lease_everything_ends(start: Any) -> None:
    fleet = start(2, lease_seconds=10.0)
    fleet.wait(2, timeout=PATIENCE_S)
    time.sleep(12)
    assert len(serving(fleet)) == 2, "the owner renews"
    fleet._bond().release()
    until("no actor", lambda: not workers_by_name())
    with pytest.raises(fs.ConfigError, match=r"there is no fleet 'default' in this job .* or it has ended"):
        find()


OWNER = """
import sys, time
import ray
sys.path.insert(0, sys.argv[2])
ray.init(sys.argv[1], log_to_driver=False)
import test_ray_fleet as test
import feedstock as fs
pipeline = fs.Dataset(sys.argv[3], columns=["label"]).batch(16)
fleet = test.Fleet(
    pipeline, 1, resources={test.WORKER_RESOURCE: 1}, cpus_per_worker=0.1, _native=test.FakeNative(),
    _timing=test.QUICK, lease_seconds=600, name="orphan"
)
fleet.wait()
print("ready", flush=True)
if sys.argv[4] == "hang":
    time.sleep(1000)
"""


@pytest.mark.parametrize("end", ["hang", "exit"])
def test_the_fleet_of_a_job_that_ended(cluster: RayCluster, nodes: Any, imagenet: Path, end: str) -> None:
    """The job is killed, or its program ends, without a message to the fleet."""
    command = [
        sys.executable,
        "-c",
        OWNER,
        cluster.cluster.address,
        str(Path(__file__).parent),
        str(imagenet),
    ]
    owner = subprocess.Popen([*command, end], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        assert any(line == "ready\n" for line in owner.stdout), "it ended early"
        if end == "hang":
            assert [name for name in workers_by_name() if ":orphan:worker-" in name]
            owner.kill()
        owner.wait(PATIENCE_S)
    finally:
        owner.kill()
    until("no actor", lambda: not workers_by_name())
    if end == "exit":
        assert owner.returncode == 0


# Finding a fleet, and messages


@ray.remote(num_cpus=0)
class Rank:
    """Another process of the job."""

    def find(self, handle: Any = None) -> tuple[list[str], str, bool]:
        handle = handle or find()
        handle.watch(FakeLoader(share=0.0))
        one = handle.members()
        return one.addresses(), repr(handle), one is find().members()


def test_found_by_name_and_carried_by_ray(start: Any) -> None:
    fleet = start(1)
    fleet.wait(timeout=PATIENCE_S)
    rank = Rank.remote()
    for told in (ray.get(rank.find.remote()), ray.get(rank.find.remote(fleet))):
        assert told == (fleet.addresses(), "FleetHandle('default')", True)
    again = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(fleet))))
    assert (repr(again), again.addresses()) == ("FleetHandle('default')", fleet.addresses())
    assert fleet.token.encode() not in ray.cloudpickle.dumps(fleet)
    with pytest.raises(fs.ConfigError, match="was found by its name and has no pipeline"):
        find().loader(0, 1)
    with pytest.raises(fs.ConfigError, match="workers= is the fleet itself"):
        fleet.loader(0, 1, workers="ray")


def test_two_fleets_have_two_names(start: Any) -> None:
    start(0, 1)
    with pytest.raises(fs.ConfigError, match="there is already a fleet 'default' in this job"):
        start(0, 1)
    start(0, 1, name="evaluation")
    assert find("evaluation").status()["size"] == 0


def test_what_workers_refuse_is_said_by_wait(start: Any) -> None:
    fleet = start(1, _native=Refusing())
    with pytest.raises(fs.ConfigError, match=r"workers of fleet 'default' cannot start: .*memory_bytes=1"):
        fleet.wait(timeout=PATIENCE_S)


def test_options_that_cannot_be(pipeline: fs.Pipeline) -> None:
    for options, message in [
        ({"min_workers": 3, "max_workers": 2}, "max_workers must be >= min_workers=3; got 2"),
        ({"placement": "STRICT"}, "placement must be 'SPREAD' or 'PACK'; got 'STRICT'"),
        ({"local": "always"}, "local must be 'never', 'fallback' or 'share'; got 'always'"),
        ({"lease_seconds": 3}, "lease_seconds must be >= 8, four renewals.*; got 3"),
        ({"allow": "s3://corpus"}, r"allow=\['s3://corpus'\]"),
        ({"allow": []}, "allow must have at least one URI prefix"),
        ({"name": "a:b"}, "without a colon"),
        ({"allow_code": True, "tls": False}, "allow_code=True needs tls=True"),
        ({"placement_group": object(), "label_selector": {"a": "b"}}, "bundle_label_selector="),
    ]:
        with pytest.raises(fs.ConfigError, match=message):
            Fleet(pipeline, **options)  # type: ignore[arg-type]
    mapped = pipeline.map_rows(lambda row, rng: {"x": 1}, executor="worker")
    with pytest.raises(fs.ConfigError, match='has executor="worker".*allow_code=True'):
        Fleet(mapped)
    items = fs.from_torch([1, 2, 3], num_workers=1).batch(1)
    with pytest.raises(
        fs.ConfigError, match=r"from_torch\(list\) makes its items on workers.*allow_code=True"
    ):
        Fleet(items)


def test_what_workers_may_read_is_what_the_pipeline_names(imagenet: Path) -> None:
    here, there = (
        fs.Dataset(imagenet),
        fs.Dataset(f"{imagenet}/data/train-*.parquet", storage={"region": "x"}),
    )
    mapped = here.filter("label < 500").map("image", fs.decode_image(), fs.random_resized_crop(8)).batch(8)
    assert (allowed(mapped), settings(mapped)) == ((str(imagenet),), {})
    mix = fs.Dataset.mix([(here.named("a"), 1), (here.columns(["label"]).named("b"), 1)]).batch(8)
    assert allowed(mix) == (str(imagenet),)
    parts = [here.named("a"), there.named("b")]
    assert allowed(fs.Dataset.concat(parts).batch(8)) == (str(imagenet), f"{imagenet}/data/")
    assert (allowed(there.batch(8)), settings(there.batch(8))) == ((f"{imagenet}/data/",), {"region": "x"})
    with pytest.raises(fs.ConfigError, match="different storage settings; give the workers' settings"):
        settings(fs.Dataset.mix([(here.named("a"), 1), (there.named("b"), 1)]).batch(8))
    noisy = here.map(
        "image", fs.decode_audio(), fs.resample(16_000), fs.add_noise("s3://noise/musan"), output="wave"
    ).batch(8)
    assert allowed(noisy) == (str(imagenet), "s3://noise/musan")
    items = fs.from_torch([1, 2, 3], num_workers=1).filter("index > 0").batch(1)
    assert (allowed(items), settings(items), sources(items)) == ((), {}, ())


def test_without_ray_there_is_a_clear_error() -> None:
    program = """
import sys
sys.modules["ray"] = None  # as if it were not installed
import feedstock.ray
for name in ("Fleet", "find", "WORKER_RESOURCE"):
    try:
        getattr(feedstock.ray, name)
    except ImportError as error:
        assert f"feedstock.ray.{name} needs Ray, " in str(error), error
    else:
        sys.exit("no error")
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)


def test_secrets_are_not_shown(start: Any) -> None:
    fleet = start(0, 1, storage={"aws_secret_access_key": "a-key-that-nobody-may-see"})
    identity = Identity.fresh(FakeNative(), tls=True)
    shown = f"{identity!r} {fleet.credentials!r} {fleet._spec!r} {fleet!r} {fleet._bond().joined!r} {fleet.status()}"
    assert "may-see" not in shown
    assert "key" not in shown.replace("FleetHandle", "")
    assert fleet.token == TOKEN
    assert isinstance(fleet._bond(), Renewal)
