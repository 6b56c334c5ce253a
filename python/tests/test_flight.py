"""Any client of Arrow Flight can read a worker's lanes. Here it is pyarrow's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import flight
from served import worker

import feedstock as fs
from feedstock import _feedstock

NAME = "feedstock-fleet"


def pipeline(data: Path) -> fs.Pipeline:
    ops = fs.decode_image(), fs.random_resized_crop(32), fs.horizontal_flip()
    return fs.Dataset(str(data)).map("image", *ops).shuffle(seed=3, lanes=4).batch(10, tail="pad").epochs(1)


def describe(
    client: flight.FlightClient, made: fs.Pipeline, options: flight.FlightCallOptions | None = None
) -> str:
    [answer] = client.do_action(flight.Action("describe", made.spec().encode()), options)
    plan: str = json.loads(answer.body.to_pybytes())["plan"]
    return plan


def info(
    client: flight.FlightClient, plan: str, options: flight.FlightCallOptions | None = None
) -> flight.FlightInfo:
    return client.get_flight_info(flight.FlightDescriptor.for_command(json.dumps({"plan": plan})), options)


def test_all_lanes_together_are_the_epoch(imagenet: Path) -> None:
    made, serving = pipeline(imagenet), worker(imagenet)
    client = flight.FlightClient(f"grpc://{serving.address}")
    plan = describe(client, made)
    found = info(client, plan)
    assert found.schema.names[:2] == ["sample_id", "image"]
    tables = [client.do_get(endpoint.ticket).read_all() for endpoint in found.endpoints]
    table = pyarrow.concat_tables(tables)
    images = table["image"].combine_chunks().to_numpy_ndarray()  # pyarrow knows tensors of a fixed shape
    assert images.shape[1:] == (32, 32, 3)
    samples = table["sample_id"].to_pylist()
    rows = dict(zip(samples, zip(images, table["label"].to_pylist(), strict=True), strict=True))
    assert len(rows) == table.num_rows == len(made.dataset)
    for batch in made.loader():
        for row, sample in enumerate(batch.sample_ids):
            image, label = rows[int(sample)]
            assert np.array_equal(image, batch["image"].numpy()[row])
            assert label == batch["label"].numpy()[row]
    [status] = client.do_action(flight.Action("status", b""))
    assert json.loads(status.body.to_pybytes())["plans"] == 1
    serving.stop()


def test_a_lane_is_read_from_any_place(imagenet: Path) -> None:
    made, serving = pipeline(imagenet), worker(imagenet)
    client = flight.FlightClient(f"grpc://{serving.address}")
    plan = describe(client, made)
    lanes = range(len(info(client, plan).endpoints))
    tickets = [{"plan": plan, "lane": lane, "epoch": 2} for lane in lanes]
    tables = [client.do_get(flight.Ticket(json.dumps(ticket))).read_all() for ticket in tickets]
    # A small data set has few blocks, so some lanes have none.
    ticket, whole = max(zip(tickets, tables, strict=True), key=lambda pair: pair[1].num_rows)
    rest = client.do_get(flight.Ticket(json.dumps({**ticket, "position": 100, "rows": 20}))).read_all()
    assert 0 < rest.num_rows < whole.num_rows
    assert rest["sample_id"].to_pylist() == whole["sample_id"].to_pylist()[-rest.num_rows :]


def test_a_damaged_ticket_is_refused(imagenet: Path) -> None:
    made, serving = pipeline(imagenet), worker(imagenet)
    client = flight.FlightClient(f"grpc://{serving.address}")
    ticket = json.loads(info(client, describe(client, made)).endpoints[0].ticket.ticket)
    damaged = json.dumps({**ticket, "position": ticket["position"] ^ 4})
    with pytest.raises(pyarrow.ArrowInvalid, match="the ticket is damaged: its checksum does not match"):
        client.do_get(flight.Ticket(damaged)).read_all()
    serving.stop()


def test_errors_say_what_is_wrong(imagenet: Path, tmp_path: Path) -> None:
    serving = worker(tmp_path)
    client = flight.FlightClient(f"grpc://{serving.address}")
    with pytest.raises(flight.FlightUnauthorizedError, match="outside of what is allowed"):
        describe(client, pipeline(imagenet))
    with pytest.raises(KeyError, match="describe it first"):
        info(client, "0" * 32)
    with pytest.raises(pyarrow.ArrowInvalid, match="makes no sense"):
        client.do_get(flight.Ticket(b"no JSON")).read_all()
    allowed = worker(imagenet)
    client = flight.FlightClient(f"grpc://{allowed.address}")
    ticket = {"plan": describe(client, pipeline(imagenet)), "lane": 10_000}
    with pytest.raises(pyarrow.ArrowInvalid, match="no lane 10000"):
        client.do_get(flight.Ticket(json.dumps(ticket))).read_all()


def test_functions_are_refused_before_their_code_is_loaded(imagenet: Path) -> None:
    token = "0123456789abcdef0123"
    serving = worker(imagenet, token=token, allow_code=True)
    client = flight.FlightClient(f"grpc://{serving.address}")
    said = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer " + token.encode())])
    spec = json.loads(pipeline(imagenet).spec())
    spec["functions"] = {"interpreter": "another", "steps": []}
    [answer] = client.do_action(flight.Action("describe", json.dumps(spec).encode()), said)
    ticket = answer.body.to_pybytes()
    with pytest.raises(
        pyarrow.ArrowInvalid, match=r"results of map_rows\(\) are for feedstock's own loaders"
    ):
        client.get_flight_info(flight.FlightDescriptor.for_command(ticket), said)
    with pytest.raises(
        pyarrow.ArrowInvalid, match=r"results of map_rows\(\) are for feedstock's own loaders"
    ):
        client.do_get(flight.Ticket(ticket), said).read_all()
    plain = describe(client, pipeline(imagenet), said)
    [listed] = client.list_flights(options=said)
    assert json.loads(listed.descriptor.command)["plan"] == plain
    serving.stop()


def test_tokens_and_certificates(imagenet: Path) -> None:
    identity = _feedstock.fleet_identity([NAME])
    serving = worker(
        imagenet,
        token=identity["token"],
        tls=(identity["server_cert"], identity["server_key"]),
        client_ca=identity["ca"],
    )
    secure = {"tls_root_certs": identity["ca"].encode(), "override_hostname": NAME}
    shown = {"cert_chain": identity["client_cert"].encode(), "private_key": identity["client_key"].encode()}
    address = f"grpc+tls://{serving.address}"
    client = flight.FlightClient(address, **secure, **shown)
    said = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer " + identity["token"].encode())])
    assert info(client, describe(client, pipeline(imagenet), said), said).endpoints
    with pytest.raises(flight.FlightUnauthenticatedError, match="Bearer"):
        describe(client, pipeline(imagenet))
    with pytest.raises(flight.FlightUnavailableError):
        describe(flight.FlightClient(address, **secure), pipeline(imagenet), said)
