"""Folders on any filesystem Spark can write, through Hadoop's interface in the driver."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.base.private import make_folder
from headrace.errors import StoreError
from headrace.move.java_aid import java_aid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Folder:
    """A folder by its address: a path, or ``hdfs://…``, ``s3a://…`` and so on."""

    def __init__(self, spark: SparkSession, address: str) -> None:
        from pyspark.errors import PySparkException

        self._spark = spark
        jvm: Any = spark._jvm
        self._path: Any = jvm.org.apache.hadoop.fs.Path
        try:
            path = self._path(address)
            self._files: Any = path.getFileSystem(spark._jsc.hadoopConfiguration())
            self.address = str(self._files.makeQualified(path).toString())
        except (PySparkException, _java_error()) as error:
            raise unusable(address, _reason(error)) from None

    @property
    def local(self) -> Path | None:
        """The folder on this machine, if it is one."""
        head, _, rest = self.address.partition(":")
        return Path("/" + rest.lstrip("/")) if head == "file" else None

    def exists(self, name: str = "") -> bool:
        with self._reached():
            return bool(self._files.exists(self._at(name)))

    def names(self) -> list[str]:
        """What stands in the folder; nothing if there is none."""
        if not self.exists():
            return []
        with self._reached():
            return sorted(str(status.getPath().getName()) for status in self._files.listStatus(self._at("")))

    def folders(self) -> list[str] | None:
        """The folders in the folder; none if it is no folder."""
        if not self.exists():
            return None
        with self._reached():
            if not self._files.getFileStatus(self._at("")).isDirectory():
                return None
            found = [status for status in self._files.listStatus(self._at("")) if status.isDirectory()]
            return sorted(str(status.getPath().getName()) for status in found)

    def sizes(self, name: str) -> dict[str, int]:
        """The data files of a folder below, with their sizes."""
        found = {}
        if self.exists(name):
            with self._reached():
                for status in self._files.listStatus(self._at(name)):
                    file = str(status.getPath().getName())
                    if not file.startswith(("_", ".")):
                        found[file] = int(status.getLen())
        return found

    def checksum(self, name: str) -> int:
        """CRC-32 of a file; -1 if its filesystem says itself that it was altered."""
        with self._reached():
            try:
                return int(java_aid(self._spark).checksum(self._files, self._at(name)))
            except _java_error() as error:
                if not _altered(error):
                    raise
        return -1

    def modified(self, name: str) -> int | None:
        """When a file was last written, in milliseconds of the filesystem's clock; none if it is gone."""
        with self._reached():
            try:
                return int(self._files.getFileStatus(self._at(name)).getModificationTime())
            except _java_error():
                if self.exists(name):
                    raise
        return None

    def read(self, name: str) -> str | None:
        """The text of a small file; none if its filesystem says itself that it was altered."""
        with self._reached():
            stream = self._files.open(self._at(name))
            try:
                jvm: Any = self._spark._jvm
                return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            except _java_error() as error:
                if not _altered(error):
                    raise
            finally:
                stream.close()
        return None

    def write(self, name: str, text: str, *, overwrite: bool = True) -> None:
        """Write a small file as it is, in one go."""
        with self.written():
            stream = self._files.create(self._at(name), overwrite)
            try:
                stream.write(bytearray(text.encode()))
            finally:
                stream.close()

    def create(self, name: str) -> bool:
        """Make an empty file; false if somebody else has made it."""
        if self.local is not None:  # where Hadoop looks first and then makes it
            try:
                (self.local / name).touch(exist_ok=False)
            except FileExistsError:
                return False
            except OSError as error:
                raise self._unwritten(str(error)) from None
            return True
        try:
            self.write(name, "", overwrite=False)
        except StoreError:
            if self.exists(name):
                return False
            raise
        return True

    def publish(self, name: str, text: str) -> None:
        """Write a small file so that it is there whole or not at all."""
        self.write(f"{name}.part", text)
        with self.written():
            if not self._files.rename(self._at(f"{name}.part"), self._at(name)):
                raise StoreError("TICKET_NOT_WRITTEN", f"{self.address}/{name} cannot be put in its place")

    def make(self, *, private: bool = False) -> None:
        """Make the folder if there is none; a ``private`` one, where there are users, for this one alone."""
        if private and self.local is not None and not self.local.exists():
            try:
                make_folder(self.local, top=True)
            except OSError as error:
                raise self._unwritten(error.strerror or str(error)) from None
        with self.written():
            self._files.mkdirs(self._at(""))

    def require_writable(self) -> None:
        """Make the folder if there is none, and see that files can be made in it."""
        self.make()
        name = f".{uuid.uuid4().hex}"
        self.write(name, "")
        self.remove(name)

    def remove(self, name: str = "") -> None:
        """Remove a file or a folder with all in it; one that is gone is fine."""
        with self._reached():
            self._files.delete(self._at(name), True)

    @contextmanager
    def written(self) -> Iterator[None]:
        """Failures to write have one name."""
        from pyspark.errors import PySparkException

        try:
            yield
        except (PySparkException, _java_error()) as error:
            raise self._unwritten(_reason(error)) from None

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """So have failures to look."""
        from pyspark.errors import PySparkException

        try:
            yield
        except (PySparkException, _java_error()) as error:
            raise unusable(self.address, _reason(error)) from None

    def _unwritten(self, why: str) -> StoreError:
        return StoreError(
            "TICKET_NOT_WRITTEN",
            f"{self.address} cannot be written: {why}",
            hint="check the path, its permissions and the free space",
        )

    def _at(self, name: str) -> Any:
        return self._path(f"{self.address}/{name}" if name else self.address)


def unusable(where: str, why: str) -> StoreError:
    """The refusal for an address that cannot be reached or read."""
    return StoreError("PATH_NOT_USABLE", f"{where}: {why}", hint="check the address, its permissions and the way there")


def _java_error() -> type[Exception]:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    return Py4JError  # type: ignore[no-any-return]


def _altered(error: Exception) -> bool:
    return "Checksum" in _reason(error)


def _reason(error: Exception) -> str:
    """The innermost reason a JVM failure gives, in one line."""
    cause: Any = getattr(error, "java_exception", None)
    while cause is not None and cause.getCause() is not None:
        cause = cause.getCause()
    text = str(cause.getMessage() or cause.toString()) if cause is not None else str(error)
    return (text.splitlines() or [""])[0]
