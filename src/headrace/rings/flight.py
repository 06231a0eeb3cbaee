"""A ring used from another host, through the process that owns it, by Arrow Flight.

A worker elsewhere cannot map the memory. One that reads asks the owner for its share of a reader, and gets the ranges
that are picked for it, as long as the window lasts. Text is sent as plain strings: a view would take its whole buffer
along. One that inserts sends the owner its rows.

Whoever asks must know the server's secret, which workers get with their tasks. Beyond loopback it goes by TLS or not at
all: workers trust the owner's certificate and no other.
"""

from __future__ import annotations

import ipaddress
import json
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import flight

from headrace.base.private import has_shape, parse_json
from headrace.errors import ExecutionError, HeadraceError
from headrace.rings.delivery import Address, put
from headrace.rings.ring import Ring
from headrace.rings.scan import ReaderTicket, Scan, WindowOver

_MARK = "HEADRACE "


class RingServer(flight.FlightServerBase):  # type: ignore[misc]
    """Serves the rings of one database to whoever knows its secret."""

    def __init__(self, host: str, ring_of: Callable[[str], Ring | None], tls: tuple[str, str] = ("", "")) -> None:
        certificate, key = _pem(tls[0]), _pem(tls[1])
        if not (certificate and key) and not is_loopback(host):
            raise ExecutionError(
                "FLIGHT_NEEDS_TLS",
                f"Spark tasks on other hosts would read and write streams through {host} without encryption",
                hint="connect with flight_certificate and flight_key, PEM files for that host; or engine = 'native'",
            )
        scheme = "grpc+tls" if certificate else "grpc"
        try:
            super().__init__(f"{scheme}://{host}:0", tls_certificates=[(certificate, key)] if certificate else None)
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise ExecutionError(
                "FLIGHT_NOT_STARTED",
                f"streams cannot be served at {host}: {str(error).splitlines()[0]}",
                hint="check spark.driver.host, and the certificate and its key",
            ) from None
        self._ring_of = ring_of
        self.secret = secrets.token_hex(16)
        self.certificate = certificate.decode()
        self.location = f"{scheme}://{host}:{self.port}"

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.RecordBatchStream:
        asked, ring = self._asked(ticket.ticket)
        scan = Scan(ring, ReaderTicket(*asked["reader"]), asked["columns"], asked["worker"])
        schema = plain_schema(scan.schema)
        return flight.GeneratorStream(schema, _sent(scan, schema, context))

    def do_put(
        self, context: Any, descriptor: flight.FlightDescriptor, reader: flight.MetadataRecordBatchReader, _: Any
    ) -> None:
        asked, ring = self._asked(descriptor.command)
        try:
            put(Address(ring.stream, ring.folder, asked["token"]), reader.read_all(), ring)
        except HeadraceError as error:
            raise flight.FlightServerError(f"{_MARK}{error.condition} {error.message}") from None

    def _asked(self, command: bytes) -> tuple[dict[str, Any], Ring]:
        """What somebody asks who may, and the ring it is about."""
        try:
            asked: dict[str, Any] = parse_json(bytes(command))
        except ValueError:
            asked = {}
        given = asked["secret"] if has_shape(asked, {"secret": str}) else ""
        if not secrets.compare_digest(given.encode(errors="replace"), self.secret.encode()):
            raise flight.FlightUnauthenticatedError("not one of this database's workers")
        ring = self._ring_of(asked["stream"])
        if ring is None:
            raise flight.FlightServerError(f"{_MARK}STREAM_CLOSED stream {asked['stream']} is not buffered here")
        return asked, ring


def _sent(scan: Scan, schema: pa.Schema, context: Any) -> Iterator[pa.RecordBatch]:
    try:
        while True:
            batch = scan.next(wait=0.2)
            if batch is not None:
                yield batch.cast(schema)
            elif context.is_cancelled():
                scan.cancel()
                return
    except WindowOver:
        return
    except HeadraceError as error:
        raise flight.FlightServerError(f"{_MARK}{error.condition} {error.message}") from None


def remote_batches(
    location: str,
    secret: str,
    stream: str,
    ticket: ReaderTicket,
    columns: Sequence[str],
    worker: int,
    certificate: str = "",
) -> Iterator[pa.RecordBatch]:
    """One worker's share of a reader, from the owner of its ring."""
    asked = {
        "secret": secret,
        "stream": stream,
        "reader": [ticket.reader, ticket.id],
        "columns": list(columns),
        "worker": worker,
    }
    with _failures(stream, location), _connected(location, certificate) as client:
        for chunk in client.do_get(flight.Ticket(json.dumps(asked).encode())):
            yield chunk.data


def send(to: Address, rows: pa.Table) -> None:
    """Have the owner of a ring put rows of a delivery into it; returns when it has."""
    asked = {"secret": to.secret, "stream": to.stream, "token": to.token}
    rows = rows.cast(plain_schema(rows.schema))
    with _failures(to.stream, to.location), _connected(to.location, to.certificate) as client:
        writer, _ = client.do_put(flight.FlightDescriptor.for_command(json.dumps(asked).encode()), rows.schema)
        with writer:
            writer.write_table(rows)
            writer.done_writing()


def _connected(location: str, certificate: str) -> Any:
    return flight.connect(location, tls_root_certs=certificate.encode() or None)


def _pem(path: str) -> bytes:
    try:
        return Path(path).read_bytes() if path else b""
    except OSError as error:
        raise ExecutionError(
            "FLIGHT_NOT_STARTED", f"{path} cannot be read: {error.strerror}", hint="give a PEM file of this host"
        ) from None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "10.0.0.7", "example.org")]
    [True, True, True, False, False, False]
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@contextmanager
def _failures(stream: str, location: str) -> Iterator[None]:
    """What the owner says went wrong, by its name."""
    try:
        yield
    except (flight.FlightError, pa.ArrowException, OSError) as error:
        _, mark, text = str(error).partition(_MARK)
        condition, _, message = text.partition(" ")
        if mark:
            raise ExecutionError(condition, message.split(". gRPC client")[0], hint="ask again") from None
        raise ExecutionError(
            "STREAM_OWNER_UNREACHABLE",
            f"the owner of stream {stream} at {location} does not answer: {str(error).splitlines()[0]}",
            hint="let executors reach the driver's host, or set engine = 'native' to use the stream there",
        ) from None


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The same columns with text of their own."""
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    return pa.schema([(f.name, plain.get(f.type, f.type)) for f in schema])


class Flights:
    """The server of a database, started when a reader elsewhere may need it."""

    def __init__(self, ring_of: Callable[[str], Ring | None], tls: tuple[str, str] = ("", "")) -> None:
        self._ring_of = ring_of
        self._tls = tls
        self._lock = threading.Lock()
        self._server: RingServer | None = None

    def on(self, host: str) -> RingServer:
        with self._lock:
            if self._server is None:
                self._server = RingServer(host, self._ring_of, self._tls)
            return self._server

    def close(self) -> None:
        with self._lock:
            if self._server is not None:
                self._server.shutdown()
                self._server = None
