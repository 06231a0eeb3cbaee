"""Rings through Arrow Flight: the secret is asked for, and beyond loopback TLS is."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import flight

import headrace
from headrace.errors import HeadraceError
from headrace.rings.flight import RingServer, remote_batches
from headrace.rings.scan import Scan
from headrace.settings import Settings


def refused(what: Callable[[], Any]) -> str:
    with pytest.raises(HeadraceError) as caught:
        what()
    assert caught.value.hint
    return caught.value.condition


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[str, str]:
    """A certificate of this machine for itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    made = tmp_path / "flight.pem", tmp_path / "flight.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-out", made[0], "-keyout", made[1]),
        ],
        check=True,
        capture_output=True,
    )
    return str(made[0]), str(made[1])


@pytest.fixture
def db(request: pytest.FixtureRequest) -> Iterator[headrace.Database]:
    with headrace.connect() as db:
        db.sql("CREATE STREAM s (k INT, name STRING) WITH (capacity = 1000, timeout = '1 second')")
        yield db


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "driver.example.org"])
def test_beyond_loopback_there_is_no_server_without_tls(db: headrace.Database, host: str) -> None:
    assert refused(lambda: db.runtime.rings.flights.on(host)) == "FLIGHT_NEEDS_TLS"
    server = db.runtime.rings.flights.on("127.0.0.1")
    assert server.location.startswith("grpc://127.0.0.1:")


def test_with_a_certificate_it_is_tls_and_no_other_certificate_will_do(certificate: tuple[str, str]) -> None:
    given, key = certificate
    with headrace.connect(flight_certificate=given, flight_key=key) as db:
        db.sql("CREATE STREAM s (k INT, name STRING) WITH (capacity = 1000, timeout = '1 second')")
        server = db.runtime.rings.flights.on("127.0.0.1")
        assert server.location.startswith("grpc+tls://")
        (ring,) = db.runtime.rings.all()
        scan = Scan.start(ring, ["k", "name"], oldest=True)
        db.insert("s", [(1, "a"), (2, "b" * 100)])
        found = remote_batches(server.location, server.secret, "s", scan.ticket, ["k", "name"], 1, server.certificate)
        assert [row for batch in found for row in batch.to_pylist()] == [
            {"k": 1, "name": "a"},
            {"k": 2, "name": "b" * 100},
        ]
        late = Scan.start(ring, ["k"], oldest=True)
        for location, trusted in (
            (server.location, ""),
            (server.location.replace("grpc+tls", "grpc"), ""),
        ):
            batches = remote_batches(location, server.secret, "s", late.ticket, ["k"], 1, trusted)
            assert refused(lambda batches=batches: list(batches)) == "STREAM_OWNER_UNREACHABLE"  # type: ignore[misc]
        late.cancel()


def test_a_certificate_that_is_none_has_a_name(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("no certificate")
    for tls in ((str(tmp_path / "none"), "x"), (str(tmp_path / "x"), str(tmp_path / "x"))):
        assert refused(lambda tls=tls: RingServer("127.0.0.1", lambda name: None, tls)) == "FLIGHT_NOT_STARTED"  # type: ignore[misc]
    assert refused(lambda: Settings.of({"flight_certificate": "x"})) == "INVALID_SETTING"


def test_who_does_not_know_the_secret_gets_nothing(db: headrace.Database) -> None:
    server = db.runtime.rings.flights.on("127.0.0.1")
    asked = {"stream": "s", "reader": [0, 0], "columns": ["k"], "worker": 1, "token": "x"}
    texts = [json.dumps({**asked, "secret": secret}).encode() for secret in ("", "x", "é", 7, None, ["x"], {"a": 1})]
    with flight.connect(server.location) as client:
        for text in (*texts, json.dumps(asked).encode(), b"", b"\xff", b"[]", b"7", b"[" * 100_000):
            with pytest.raises(flight.FlightUnauthenticatedError):
                client.do_get(flight.Ticket(text)).read_all()
            with pytest.raises(flight.FlightUnauthenticatedError):
                writer, _ = client.do_put(flight.FlightDescriptor.for_command(text), _schema())
                with writer:
                    writer.done_writing()
        for ask in (client.list_flights, client.list_actions):
            with pytest.raises((flight.FlightError, NotImplementedError)):
                list(ask())


def _schema() -> Any:
    import pyarrow as pa

    return pa.schema([("k", pa.int32())])
